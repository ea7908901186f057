//! The command line: a client of the API.
//!
//! ```text
//!   Cli (clap) -> Context { Client, Output } -> one file per noun -> wire types -> table | json
//!                                                     |
//!                        wait + goal + live + progress (changes are followed to their end)
//! ```
//!
//! It knows the wire types, the client, the configuration and how names and sizes are parsed. It must not know
//! the manager: what cannot be had over the API cannot be had here.

pub mod admin;
mod args;
mod audit;
mod caps;
mod change;
mod config_file;
mod console;
mod context;
mod create;
mod csv;
pub mod doctor;
mod error;
mod events;
mod files;
mod goal;
mod gpu;
mod helper;
mod hosts;
mod identity;
mod image;
mod key;
mod live;
mod login;
mod logs;
mod manager;
mod output;
mod power;
mod profile;
mod progress;
mod quota;
#[cfg(test)]
mod samples;
mod scan;
mod shell;
mod ssh;
mod table;
mod team;
mod token;
mod user;
mod vm;
mod vm_ref;
mod wait;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{CommandFactory as _, Parser, Subcommand};

use self::context::Context;
use self::error::{CliError, CliResult, EXIT_CODES};
use self::output::{Color, Format, Output, Talk};
use crate::api::error::ErrorCode;
use crate::config::{Config, ConfigError};
use crate::model::card::function::HelperJob;

/// Personal GPU computers from a shared server
///
/// Makes virtual machines on a shared server and gets you into them. An administrator runs the manager (`gvm
/// serve`) and the SSH gateway (`gvm gateway`); every other command talks to the manager, over its socket or HTTPS.
#[derive(Debug, Parser)]
#[command(name = "gvm", version, after_help = EXIT_CODES, max_term_width = 100, arg_required_else_help = true)]
#[command(disable_help_subcommand = true)]
pub struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    command: Command,
}

/// Options of every command.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Global options")]
struct Global {
    /// Form of the result: table or json
    #[arg(short = 'o', long = "format", global = true, value_enum, default_value_t, value_name = "FORMAT")]
    #[arg(hide_possible_values = true)]
    format: Format,
    /// Configuration file
    #[arg(long, global = true, env = "GVM_CONFIG", value_name = "FILE", hide_env_values = true)]
    config: Option<PathBuf>,
    /// The manager's socket [default: the configuration's, else /run/gvm/api.sock]
    #[arg(long, global = true, env = "GVM_SOCKET", value_name = "PATH", hide_env_values = true)]
    socket: Option<PathBuf>,
    #[command(flatten)]
    manager: manager::HostArgs,
    /// Nothing but results and errors
    #[arg(short, long, global = true)]
    quiet: bool,
    /// Colours: auto, always or never
    #[arg(long, global = true, value_enum, default_value_t, value_name = "WHEN", hide_possible_values = true)]
    color: Color,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Make a machine and wait until you can log in
    Create(Box<create::CreateArgs>),
    /// List machines
    #[command(visible_alias = "ls")]
    List(vm::ListArgs),
    /// Show everything about a machine
    Show(vm::ShowArgs),
    /// Start a machine
    Start(power::StartArgs),
    /// Stop a machine: ask the guest, force it off after a grace period
    Stop(power::StopArgs),
    /// Restart a machine
    Restart(power::StopArgs),
    /// Hold a machine's CPUs; its memory stays
    Pause(power::StartArgs),
    /// Let a paused machine go on
    Resume(power::StartArgs),
    /// Delete a machine; for a while it can be undeleted
    Delete(power::DeleteArgs),
    /// Bring a deleted machine back
    Undelete(power::StartArgs),
    /// Give a machine another name
    Rename(change::RenameArgs),
    /// Change CPUs, memory or disk of a machine
    Resize(change::ResizeArgs),
    /// Copy a stopped machine
    Clone(change::CloneArgs),
    /// Put labels on machines
    #[command(subcommand)]
    Tag(change::TagCommand),
    /// Change the limits or the lifetime of a machine
    Set(change::SetArgs),
    /// Log in to a machine, or run a command in it
    Ssh(ssh::SshArgs),
    /// Print or write an OpenSSH configuration for your machines
    SshConfig(ssh::SshConfigArgs),
    /// Copy files to and from machines
    Scp(ssh::ScpArgs),
    /// Use the serial console of a machine
    Console(console::ConsoleArgs),
    /// Print what a machine wrote to its serial console
    Logs(logs::LogsArgs),
    /// Watch what happens to your machines
    Events(events::EventsArgs),
    /// See the shapes that machines are made from
    #[command(subcommand)]
    Profile(profile::ProfileCommand),
    /// Manage the images that disks are cloned from
    #[command(subcommand)]
    Image(image::ImageCommand),
    /// See and prepare the GPUs of the host
    #[command(subcommand)]
    Gpu(gpu::GpuCommand),
    /// Manage the SSH keys that open your machines
    #[command(subcommand)]
    Key(key::KeyCommand),
    /// Log in to a manager on another host
    Login(login::LoginArgs),
    /// Revoke and forget the login to a manager on another host
    Logout(login::LogoutArgs),
    /// Manage the API tokens of your programs
    #[command(subcommand)]
    Token(token::TokenCommand),
    /// Show who the manager takes you for
    Whoami,
    /// Manage people and service accounts
    #[command(subcommand)]
    User(user::UserCommand),
    /// Manage teams and who is in them
    #[command(subcommand)]
    Team(team::TeamCommand),
    /// See the record of who did what, and verify it
    #[command(subcommand)]
    Audit(audit::AuditCommand),
    /// See what you hold and may hold
    #[command(subcommand)]
    Quota(quota::QuotaCommand),
    /// Check the host for everything that gvm needs
    Doctor(doctor::DoctorArgs),
    /// Look after the manager itself
    #[command(subcommand)]
    Admin(admin::AdminCommand),
    /// Check a configuration file
    CheckConfig(config_file::CheckConfigArgs),
    /// Run the manager
    Serve,
    /// Run the SSH gateway
    Gateway,
    /// Change the drivers of a card's functions, judge a password; started by the manager
    #[command(subcommand, hide = true)]
    Helper(helper::HelperCommand),
    /// Print a completion script for a shell
    Completions(shell::CompletionsArgs),
    /// Print the manual page, or write one for every command
    Man(shell::ManArgs),
}

/// A part of gvm that runs until it is told to stop.
#[derive(Clone, Debug)]
pub enum Service {
    /// `gvm serve`
    Manager,
    /// `gvm gateway`
    Gateway,
    /// `gvm admin restore`
    Restore(admin::RestoreArgs),
}

impl Cli {
    /// Parses the arguments of this process. What cannot be parsed is told; the error is the exit code.
    ///
    /// # Errors
    /// The exit code: 2 for a bad command line, 0 after `--help` and `--version`.
    pub fn from_args() -> Result<Self, ExitCode> {
        let args: Vec<OsString> = std::env::args_os().collect();
        Self::try_parse_from(&args).map_err(|error| ExitCode::from(args::tell(&error, &args)))
    }

    /// The service that is asked for, where it is one.
    pub fn service(&self) -> Option<Service> {
        match &self.command {
            Command::Serve => Some(Service::Manager),
            Command::Admin(admin::AdminCommand::Restore(args)) => Some(Service::Restore(args.clone())),
            Command::Gateway => Some(Service::Gateway),
            _ => None,
        }
    }

    /// What the helper is to do, and where, if it is asked for.
    pub fn helper(&self) -> Option<(&helper::Place, HelperJob)> {
        match &self.command {
            Command::Helper(command) => command.parts(),
            _ => None,
        }
    }

    /// True where a password is to be judged by PAM.
    #[cfg(feature = "libvirt")]
    pub const fn is_pam_helper(&self) -> bool {
        matches!(self.command, Command::Helper(helper::HelperCommand::Pam))
    }

    /// The configuration for a service; a fault in it is told, the error is the exit code.
    ///
    /// # Errors
    /// The exit code.
    pub fn service_config(&self) -> Result<Config, ExitCode> {
        let config = Config::load(self.global.config.as_deref()).map_err(CliError::from);
        match config {
            Ok(mut config) => {
                if let Some(socket) = &self.global.socket {
                    config.manager.socket.clone_from(socket);
                }
                Ok(config)
            }
            Err(error) => {
                self.global.output().error(&error);
                Err(ExitCode::from(error.exit_code()))
            }
        }
    }
}

impl Global {
    fn output(&self) -> Output {
        Output::new(self.format, self.color, if self.quiet { Talk::Quiet } else { Talk::Usual })
    }

    /// The socket: as given, else the configuration's. A configuration that a member may not read is no fault.
    fn socket(&self) -> CliResult<PathBuf> {
        if let Some(socket) = &self.socket {
            return Ok(socket.clone());
        }
        match Config::load(self.config.as_deref()) {
            Ok(config) => Ok(config.manager.socket),
            Err(ConfigError::Read { source, .. })
                if self.config.is_none() && source.kind() == std::io::ErrorKind::PermissionDenied =>
            {
                Ok(Config::default().manager.socket)
            }
            Err(error) => Err(error.into()),
        }
    }
}

impl From<ConfigError> for CliError {
    fn from(error: ConfigError) -> Self {
        match &error {
            ConfigError::Read { path, source } => Self::file("cannot read", path, source),
            ConfigError::Parse { .. } | ConfigError::Value { .. } => Self::new(ErrorCode::Invalid, error.to_string()),
        }
    }
}

/// Runs a command to its end and returns the exit code. Services are run by the caller; see [`Cli::service`].
pub fn run(cli: Cli) -> ExitCode {
    let out = cli.global.output();
    let done = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => {
            let done = runtime.block_on(dispatch(cli, out));
            // A thread may still wait for a key on standard input; nobody waits for it.
            runtime.shutdown_background();
            done
        }
        Err(error) => Err(CliError::new(ErrorCode::Internal, format!("cannot start: {error}"))),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            out.error(&error);
            ExitCode::from(error.exit_code())
        }
    }
}

async fn dispatch(cli: Cli, out: Output) -> CliResult {
    match cli.command {
        Command::Gpu(gpu::GpuCommand::Scan(args)) => return scan::run(&out, &args),
        Command::Login(args) => return login::login(&out, args).await,
        Command::Logout(args) => return login::logout(&out, args).await,
        Command::CheckConfig(args) => return config_file::run(&out, cli.global.config.as_deref(), args),
        Command::Completions(args) => return shell::completions(&out, &args, &mut Cli::command()),
        Command::Man(args) => return shell::man(&out, &args, Cli::command()),
        _ => {}
    }
    if let Command::Audit(command) = &cli.command
        && let Some(done) = audit::offline(&out, command)
    {
        return done;
    }
    let cx = Context { client: manager::client(&cli.global)?, out };
    match cli.command {
        Command::Create(args) => create::run(&cx, *args).await,
        Command::List(args) => vm::list(&cx, &args).await,
        Command::Show(args) => vm::show(&cx, &args).await,
        Command::Start(args) => power::start(&cx, &args).await,
        Command::Stop(args) => power::stop(&cx, &args).await,
        Command::Restart(args) => power::restart(&cx, &args).await,
        Command::Pause(args) => power::pause(&cx, &args).await,
        Command::Resume(args) => power::resume(&cx, &args).await,
        Command::Delete(args) => power::delete(&cx, &args).await,
        Command::Undelete(args) => power::undelete(&cx, &args).await,
        Command::Rename(args) => change::rename(&cx, args).await,
        Command::Resize(args) => change::resize(&cx, args).await,
        Command::Clone(args) => change::clone(&cx, args).await,
        Command::Tag(command) => change::tag(&cx, command).await,
        Command::Set(args) => change::set(&cx, args).await,
        Command::Ssh(args) => ssh::ssh(&cx, args).await,
        Command::SshConfig(args) => ssh::ssh_config(&cx, &args).await,
        Command::Scp(args) => ssh::scp(&cx, args).await,
        Command::Console(args) => console::run(&cx, &args).await,
        Command::Logs(args) => logs::run(&cx, &args).await,
        Command::Events(args) => events::run(&cx, &args).await,
        Command::Profile(command) => profile::run(&cx, command).await,
        Command::Image(command) => image::run(&cx, command).await,
        Command::Gpu(command) => gpu::run(&cx, command).await,
        Command::Key(command) => key::run(&cx, command).await,
        Command::Token(command) => token::run(&cx, command).await,
        Command::Whoami => user::whoami(&cx).await,
        Command::User(command) => user::run(&cx, command).await,
        Command::Team(command) => team::run(&cx, command).await,
        Command::Audit(command) => audit::run(&cx, command).await,
        Command::Quota(command) => quota::run(&cx, command).await,
        Command::Doctor(args) => doctor::run(&cx, &args).await,
        Command::Admin(command) => admin::run(&cx, command).await,
        Command::CheckConfig(_)
        | Command::Completions(_)
        | Command::Man(_)
        | Command::Login(_)
        | Command::Logout(_) => Ok(()),
        Command::Serve | Command::Gateway | Command::Helper(_) => {
            Err(CliError::new(ErrorCode::Internal, "services are started by the program, not by the command line"))
        }
    }
}
