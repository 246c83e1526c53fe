//! Streams: appending to them, reading them, and deleting them.
//!
//! | Module | What it does |
//! | --- | --- |
//! | `expected` | The state that a client expects to find. |
//! | `write` | Every write, whichever call it came by. |
//! | `recent` | Ids of events that were written without an expected revision. |
//! | `metadata` | The streams `$$…`, and the settings that follow from them. |
//! | `append`, `batch`, `delete`, `read` | The calls. |
//! | `all` | Reads of all streams. |

pub(super) mod all;
mod append;
mod batch;
pub(super) mod delete;
pub(super) mod expected;
pub(super) mod metadata;
mod read;
pub(super) mod recent;
pub(super) mod write;

use forebay_wire::kurrent::streams::streams_server::Streams;
use forebay_wire::kurrent::streams::{
    AppendReq, AppendResp, BatchAppendReq, BatchAppendResp, DeleteReq, DeleteResp, ReadReq, ReadResp,
};
use tonic::{Request, Response, Status, Streaming};

use super::features::Method;
use super::{KurrentDoor, Replies};

/// The calls that are advertised. A call that is not listed here is not used by clients.
pub(super) const METHODS: &[Method] = &[
    Method { name: "read", features: &["position", "events"] },
    Method { name: "append", features: &[] },
    Method { name: "batchappend", features: &["deadline_duration"] },
    Method { name: "delete", features: &[] },
    Method { name: "tombstone", features: &[] },
];

#[tonic::async_trait]
impl Streams for KurrentDoor {
    async fn read(&self, request: Request<ReadReq>) -> Result<Response<Replies<ReadResp>>, Status> {
        let (caller, share) = (self.caller(&request), self.share(&request));
        let replies = read::read(self.clone(), caller, share, request.into_inner()).await?;
        Ok(Response::new(replies))
    }

    async fn append(&self, request: Request<Streaming<AppendReq>>) -> Result<Response<AppendResp>, Status> {
        let caller = self.caller(&request);
        append::append(self, &caller, request.into_inner()).await.map(Response::new)
    }

    async fn batch_append(
        &self,
        request: Request<Streaming<BatchAppendReq>>,
    ) -> Result<Response<Replies<BatchAppendResp>>, Status> {
        let caller = self.caller(&request);
        Ok(Response::new(batch::batch_append(self.clone(), caller, request.into_inner())))
    }

    async fn delete(&self, request: Request<DeleteReq>) -> Result<Response<DeleteResp>, Status> {
        let caller = self.caller(&request);
        delete::delete(self, &caller, request.into_inner()).await.map(Response::new)
    }

    async fn tombstone(&self, request: Request<DeleteReq>) -> Result<Response<DeleteResp>, Status> {
        let caller = self.caller(&request);
        delete::tombstone(self, &caller, request.into_inner()).await.map(Response::new)
    }
}
