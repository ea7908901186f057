//! What every command that talks to the manager is given.

use super::error::CliResult;
use super::output::Output;
use super::vm_ref::VmRef;
use crate::api::client::Client;
use crate::api::client::place::Place;
use crate::api::types::{GatewayView, VmView};

/// The manager and the terminal.
#[derive(Clone, Debug)]
pub struct Context {
    /// The manager.
    pub client: Client,
    /// The terminal.
    pub out: Output,
}

impl Context {
    /// The SSH gateway as it is reached from here: a manager on another host that calls it `localhost` means itself.
    pub fn gateway(&self, gateway: GatewayView) -> GatewayView {
        match self.client.place() {
            Place::Url(url) if gateway.host == "localhost" => GatewayView { host: url.host().to_owned(), ..gateway },
            _ => gateway,
        }
    }

    /// A machine as it stands now.
    ///
    /// # Errors
    /// When there is none of that name, or the manager cannot be asked.
    pub async fn vm(&self, vm: &VmRef) -> CliResult<VmView> {
        Ok(self.client.get(&vm.path()).await?)
    }
}
