//! Reading the body of a request within limits: a body whose declared length is too large is refused before it is
//! read, the bytes that have come count against a pool that all connections share, and a body that comes too slowly is
//! given up.
//!
//! Room is taken for bytes that have come and not for bytes that were declared, so a client that declares a body and
//! sends none of it holds nothing.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use forebay_broker::api::{Hold, Share};
use http_body::Body;
use http_body_util::BodyExt as _;

/// Between two pieces of a body, and for the whole of it.
const GAP_MAX: Duration = Duration::from_secs(10);
const TIME_MAX: Duration = Duration::from_secs(60);

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

/// Reads a body of at most so many bytes. Its room is given back when the request is done with.
pub(crate) async fn read<B>(mut body: B, share: &Share, most: usize) -> Result<(Bytes, Hold), BodyError>
where
    B: Body<Data = Bytes> + Unpin,
{
    let too_large = BodyError::TooLarge { limit: most };
    if body.size_hint().exact().is_some_and(|says| says > most as u64) {
        return Err(too_large);
    }
    let mut hold = share.count(0);
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
            if !hold.grow(so_far).await {
                return Err(BodyError::Busy);
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
    Ok((read, hold))
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::Body as AnyBody;
    use forebay_broker::api::Pool;
    use tokio_stream::wrappers::ReceiverStream;

    #[tokio::test]
    async fn bodies_that_were_declared_and_do_not_come_hold_nothing() {
        let pool = Pool::new(1 << 20);
        let (sender, pieces) = tokio::sync::mpsc::channel::<Result<Bytes, std::convert::Infallible>>(1);
        let share = pool.share();
        let coming = read(AnyBody::from_stream(ReceiverStream::new(pieces)), &share, 1 << 20);
        let others = async {
            assert_eq!(pool.used(), 0);
            sender.send(Ok(Bytes::from(vec![b' '; 100_000]))).await.expect("it is read");
            while pool.used() == 0 {
                tokio::task::yield_now().await;
            }
            assert_eq!(pool.used(), 100_000, "room for the bytes that have come");
            let (other, room) = read(AnyBody::from(vec![b' '; 500_000]), &pool.share(), 1 << 20)
                .await
                .expect("there is room");
            assert_eq!((other.len(), room.bytes()), (500_000, 500_000));
            drop(sender);
        };
        let (read, ()) = tokio::join!(coming, others);
        let (read, room) = read.expect("it came");
        assert_eq!((read.len(), room.bytes()), (100_000, 100_000));
        drop(room);
        assert_eq!(pool.used(), 0);
    }
}
