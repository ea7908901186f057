//! What tests share.

pub mod card_host;
pub mod cards;
pub mod kernel;
pub mod own_process;
pub mod private_host;
pub mod run;
pub mod served;
pub mod site;
pub mod skip;
pub mod ssh;
pub mod traces;
pub mod world;
