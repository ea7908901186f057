//! `gvm`: parses the arguments and hands over to the command line or to a service.

use std::io::Write as _;
use std::process::ExitCode;

use gvm::cli::{self, Cli, Service};
use gvm::config::Config;

fn main() -> ExitCode {
    let cli = match Cli::from_args() {
        Ok(cli) => cli,
        Err(code) => return code,
    };
    if let Some((place, job)) = cli.helper() {
        return gvm::helper::run(&place.root, place.nvml.as_deref(), place.patience(), &job);
    }
    #[cfg(feature = "libvirt")]
    if cli.is_pam_helper() {
        return gvm::helper::pam::run();
    }
    let Some(service) = cli.service() else { return cli::run(cli) };
    let config = match cli.service_config() {
        Ok(config) => config,
        Err(code) => return code,
    };
    gvm::telemetry::init();
    match serve(service, config) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn serve(service: Service, config: Config) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    match service {
        #[cfg(feature = "libvirt")]
        Service::Manager => runtime.block_on(gvm::daemon::run(config)),
        #[cfg(feature = "libvirt")]
        Service::Restore(args) => {
            use gvm::daemon::restore::{Restore, run};
            let (is_check, with_config) = (args.check, args.with_config);
            runtime.block_on(run(&config, &Restore { from: args.from, is_check, with_config, replace: args.replace }))
        }
        #[cfg(not(feature = "libvirt"))]
        Service::Manager | Service::Restore(_) => {
            anyhow::bail!("this gvm was built without the manager (cargo feature `libvirt`)")
        }
        Service::Gateway => Ok(runtime.block_on(gvm::gateway::run(&config))?),
    }
}
