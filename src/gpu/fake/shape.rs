//! The fake's shapes: cards that are divided otherwise.

use super::State;
use crate::gpu::BindError;
use crate::model::card::shape::ShapeJob;

impl State {
    pub(super) fn reshape(&mut self, job: &ShapeJob) -> Result<(), BindError> {
        Err(BindError::Refused(format!("the fake is not good at {job}")))
    }
}
