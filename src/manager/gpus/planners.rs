//! A planner of MIG layouts for each kind of card, made once: it knows every layout, and costs more than every question.

use std::sync::{Arc, Mutex};

use super::super::lock;
use crate::model::gpu::mig::Geometry;
use crate::plan::mig::Planner;

/// More kinds of cards than a host has; a driver that tells something else at every look must not fill the memory.
const MAX_KINDS: usize = 16;

/// By kind of card; `None` where its layouts are not understood.
#[derive(Debug, Default)]
pub(in crate::manager) struct Planners(Mutex<Vec<(Geometry, Option<Arc<Planner>>)>>);

impl Planners {
    /// The planner for cards of this geometry.
    pub fn of(&self, geometry: &Geometry) -> Option<Arc<Planner>> {
        let mut kinds = lock(&self.0);
        if let Some((_, planner)) = kinds.iter().find(|(known, _)| known == geometry) {
            return planner.clone();
        }
        let planner = Planner::new(geometry.clone()).map(Arc::new).ok();
        if kinds.len() >= MAX_KINDS {
            kinds.remove(0);
        }
        kinds.push((geometry.clone(), planner.clone()));
        planner
    }
}
