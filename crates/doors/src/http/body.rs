//! Reading the body of a request within limits: a body whose declared length is too large is refused before it is
//! read, bodies being read count against a budget of bytes over all connections, and a body that comes too slowly is
//! given up.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body::Body;
use http_body_util::BodyExt as _;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// How many bytes of the budget are taken at a time, and before anything has come.
const STEP: usize = 64 << 10;
/// Between two pieces of a body, for the whole of it, and for room in the budget.
const GAP_MAX: Duration = Duration::from_secs(10);
const TIME_MAX: Duration = Duration::from_secs(60);
const ROOM_WAIT_MAX: Duration = Duration::from_secs(5);

/// Why a body was not read. Nothing more can be read from its connection then.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BodyError {
    #[error("the body is larger than it may be. limit=`{limit}`")]
    TooLarge { limit: usize },
    #[error("too many bytes are on their way to the server")]
    Busy,
    #[error("the body of the request came too slowly")]
    TooSlow,
    #[error("the body ended before its end")]
    Broken,
}

/// A part of the budget for bodies, given back when the request is done with.
pub(crate) struct BodyRoom(#[allow(dead_code)] OwnedSemaphorePermit);

/// Reads a body of at most so many bytes.
pub(crate) async fn read<B>(
    mut body: B,
    room: &Arc<Semaphore>,
    most: usize,
) -> Result<(Bytes, BodyRoom), BodyError>
where
    B: Body<Data = Bytes> + Unpin,
{
    let too_large = BodyError::TooLarge { limit: most };
    let says = body.size_hint().exact();
    if says.is_some_and(|says| says > most as u64) {
        return Err(too_large);
    }
    // Room is taken before anything is read, and then as the body comes: a client that only declares a large
    // body holds no more than a step.
    let first = says.map_or(STEP, |says| says as usize).min(STEP);
    let mut held = more_room(room, first).await?;
    let read = async {
        let mut whole = BytesMut::new();
        let mut only = Bytes::new();
        loop {
            let next = tokio::time::timeout(GAP_MAX, body.frame()).await.map_err(|_| BodyError::TooSlow)?;
            let Some(frame) = next else { break };
            let frame = frame.map_err(|_| BodyError::Broken)?;
            let Ok(data) = frame.into_data() else { continue };
            let so_far = whole.len() + only.len() + data.len();
            if so_far > most {
                return Err(too_large);
            }
            let left = says.map_or(STEP, |says| (says as usize).saturating_sub(so_far));
            let wanted = so_far + left.min(STEP);
            if wanted > held.num_permits() {
                held.merge(more_room(room, wanted - held.num_permits()).await?);
            }
            if whole.is_empty() && only.is_empty() {
                // Most bodies come in one piece, which is then not copied.
                only = data;
            } else {
                if whole.is_empty() {
                    whole.extend_from_slice(&std::mem::take(&mut only));
                }
                whole.extend_from_slice(&data);
            }
        }
        Ok(if whole.is_empty() { only } else { whole.freeze() })
    };
    let read = tokio::time::timeout(TIME_MAX, read).await.unwrap_or(Err(BodyError::TooSlow))?;
    Ok((read, BodyRoom(held)))
}

async fn more_room(room: &Arc<Semaphore>, bytes: usize) -> Result<OwnedSemaphorePermit, BodyError> {
    let permits = u32::try_from(bytes).unwrap_or(u32::MAX);
    let acquired = tokio::time::timeout(ROOM_WAIT_MAX, room.clone().acquire_many_owned(permits)).await;
    acquired.map_err(|_| BodyError::Busy)?.map_err(|_| BodyError::Busy)
}
