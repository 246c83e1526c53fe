//! One suite for all stores; what the SQL stores do in a handler's transaction has its own.

mod conformance;
#[cfg(all(feature = "postgres", feature = "sqlite"))]
mod transactions;

use std::sync::Arc;

use forebay_wire::v1;

use super::{Begun, Claim, StoreError};
use crate::Job;
use crate::job::JobInfo;

#[track_caller]
fn claim(begun: Result<Begun, StoreError>) -> Claim {
    match begun {
        Ok(Begun::New(claim)) => claim,
        other => panic!("the work is not ours: {other:?}"),
    }
}

/// A job as a worker hands it to a handler.
fn job(claim: Option<Claim>) -> Job<()> {
    let info = JobInfo::new(Arc::from("orders"), Arc::from("shippers"), 1, 1, v1::Message::default());
    if let Some(claim) = claim {
        info.set_claim(claim);
    }
    Job { payload: (), info }
}
