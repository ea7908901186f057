//! `gvm user`: people and service accounts; and `gvm whoami`.

pub mod import;

use std::path::PathBuf;

use clap::{Args, Subcommand};
use jiff::Timestamp;

use super::args::checked;
use super::context::Context;
use super::error::CliResult;
use super::key;
use super::table::{Align, age, card, moment, table};
use crate::api::client::segment;
use crate::api::types::{AddUser, ChangeUser, LinkLogin, Me, SuspendUser, Suspended, UserList, UserView};
use crate::model::id::UserId;
use crate::model::name::{TeamName, UserName};
use crate::model::principal::Role;

/// People of one page.
const PAGE: u32 = 1000;

/// `gvm user`
#[derive(Debug, Subcommand)]
pub enum UserCommand {
    /// Add a person, or a service account
    Add(AddArgs),
    /// Add many from a file of comma-separated values
    Import(import::ImportArgs),
    /// List people and service accounts
    #[command(visible_alias = "ls")]
    List {
        /// Only names that begin so
        #[arg(value_name = "PREFIX")]
        prefix: Option<String>,
    },
    /// Show a person
    Show(UserArg),
    /// Change role, full name or default team
    Set(SetArgs),
    /// Give a person another login; the host's account is renamed first
    Rename {
        #[command(flatten)]
        user: UserArg,
        /// The new login
        #[arg(value_name = "NAME", value_parser = checked::<UserName>)]
        name: String,
    },
    /// Put a person out of use at once: everything is kept, nothing is allowed
    Suspend(SuspendArgs),
    /// Let a suspended person in again
    Resume(UserArg),
    /// Remove a person who has no machines
    Rm(UserArg),
    /// Let a person log in by a login provider
    Link(LinkArgs),
    /// Manage the SSH keys of another, such as a service account
    #[command(subcommand)]
    Key(KeyCommand),
}

/// Whom.
#[derive(Clone, Debug, Args)]
pub struct UserArg {
    /// Login or id
    #[arg(value_name = "USER", value_parser = user_ref)]
    user: String,
}

impl UserArg {
    fn path(&self) -> String {
        format!("/v1/users/{}", segment(&self.user))
    }
}

/// A login or an id.
pub fn user_ref(text: &str) -> Result<String, String> {
    if text.parse::<UserId>().is_ok() {
        return Ok(text.to_owned());
    }
    text.parse::<UserName>().map(|name| name.to_string()).map_err(|e| e.to_string())
}

/// Options of `user add`.
#[derive(Debug, Args)]
pub struct AddArgs {
    /// Login: the host's account of that name is theirs
    #[arg(value_name = "NAME", value_parser = checked::<UserName>)]
    name: String,
    /// Name for people
    #[arg(long, value_name = "TEXT")]
    full_name: Option<String>,
    /// member, teacher, operator or admin [default: as the host's configuration says]
    #[arg(long, value_name = "ROLE", value_parser = checked::<Role>)]
    role: Option<String>,
    /// A program: it has keys and tokens, and never an account of the host
    #[arg(long)]
    service: bool,
    /// Team; may be repeated, the first is the default
    #[arg(long = "team", value_name = "TEAM", value_parser = checked::<TeamName>)]
    teams: Vec<String>,
}

/// Options of `user set`.
#[derive(Debug, Args)]
#[group(required = true, multiple = true, id = "changes", args = ["role", "full_name", "default_team", "new_account"])]
pub struct SetArgs {
    #[command(flatten)]
    user: UserArg,
    /// member, teacher, operator or admin; host follows the host's configuration
    #[arg(long, value_name = "ROLE", value_parser = role_or_host)]
    role: Option<String>,
    /// Name for people
    #[arg(long, value_name = "TEXT")]
    full_name: Option<String>,
    /// The team that machines count for where none is named, one of theirs; none for none
    #[arg(long, value_name = "TEAM", value_parser = checked::<TeamName>)]
    default_team: Option<String>,
    /// The host's account was made anew, or its number is another's by now: learn it at the next sight of their login
    #[arg(long)]
    new_account: bool,
}

fn role_or_host(text: &str) -> Result<String, String> {
    if text == "host" { Ok(text.to_owned()) } else { checked::<Role>(text).map_err(|e| format!("{e}, host")) }
}

/// Options of `user link`.
#[derive(Debug, Args)]
pub struct LinkArgs {
    #[command(flatten)]
    user: UserArg,
    /// What the provider's ID tokens call the person: their claim `sub`
    #[arg(long, value_name = "SUBJECT", required_unless_present = "ldap", conflicts_with = "ldap")]
    oidc: Option<String>,
    /// The person's entry in the directory, such as uid=anna,ou=people,dc=uni
    #[arg(long, value_name = "DN")]
    ldap: Option<String>,
}

/// Options of `user suspend`.
#[derive(Debug, Args)]
pub struct SuspendArgs {
    #[command(flatten)]
    user: UserArg,
    /// The reason; the person is told it
    #[arg(long, value_name = "TEXT", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    why: String,
    /// Stop their machines too; they keep running otherwise
    #[arg(long)]
    stop_vms: bool,
}

/// `gvm user key`
#[derive(Debug, Subcommand)]
pub enum KeyCommand {
    /// Register a public key
    Add {
        #[command(flatten)]
        user: UserArg,
        /// Public key file, or - for standard input
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
    /// List the registered keys
    #[command(visible_alias = "ls")]
    List(UserArg),
    /// Take a registered key away
    Rm {
        #[command(flatten)]
        user: UserArg,
        /// Id or fingerprint
        #[arg(value_name = "KEY", value_parser = clap::builder::NonEmptyStringValueParser::new())]
        key: String,
    },
}

/// Runs `gvm user`.
///
/// # Errors
/// See [`super::error::CliError`].
pub async fn run(cx: &Context, command: UserCommand) -> CliResult {
    match command {
        UserCommand::Add(args) => add(cx, args).await,
        UserCommand::Import(args) => import::run(cx, &args).await,
        UserCommand::List { prefix } => list(cx, &prefix.unwrap_or_default()).await,
        UserCommand::Show(user) => {
            let view: UserView = cx.client.get(&user.path()).await?;
            cx.out.result(&view, || page(&view))
        }
        UserCommand::Set(args) => {
            let default_team = args.default_team.map(|team| Some(team).filter(|team| team != "none"));
            let body = ChangeUser {
                name: None,
                role: args.role,
                full_name: args.full_name,
                default_team,
                has_new_account: args.new_account,
            };
            change(cx, &args.user, &body).await
        }
        UserCommand::Rename { user, name } => {
            change(cx, &user, &ChangeUser { name: Some(name), ..ChangeUser::default() }).await
        }
        UserCommand::Suspend(args) => suspend(cx, args).await,
        UserCommand::Resume(user) => {
            let view: UserView = cx.client.post(&format!("{}/resume", user.path()), &serde_json::json!({})).await?;
            cx.out.result(&view, || format!("{} is let in again", view.name))
        }
        UserCommand::Rm(user) => rm(cx, &user).await,
        UserCommand::Link(args) => link(cx, args).await,
        UserCommand::Key(command) => keys(cx, command).await,
    }
}

async fn add(cx: &Context, args: AddArgs) -> CliResult {
    let body = AddUser {
        name: args.name,
        full_name: args.full_name.unwrap_or_default(),
        role: args.role,
        is_service: args.service,
        teams: args.teams,
    };
    let view: UserView = cx.client.post("/v1/users", &body).await?;
    cx.out.result(&view, || format!("added {}", view.name))?;
    if view.is_service {
        cx.out.say(&format!("give it a key with: gvm user key add {} FILE", view.name));
    }
    Ok(())
}

async fn list(cx: &Context, prefix: &str) -> CliResult {
    let mut all = UserList::default();
    let mut after = String::new();
    loop {
        let query = format!("prefix={}&after={}&limit={PAGE}", segment(prefix), segment(&after));
        let page: UserList = cx.client.get(&format!("/v1/users?{query}")).await?;
        all.users.extend(page.users);
        match page.next {
            Some(next) if next > after => after = next,
            _ => break,
        }
    }
    if all.users.is_empty() && !cx.out.is_json() {
        cx.out.say("nobody; add somebody with `gvm user add`");
        return Ok(());
    }
    let now = Timestamp::now();
    cx.out.result(&all, || {
        let columns = [
            ("NAME", Align::Left),
            ("ROLE", Align::Left),
            ("KIND", Align::Left),
            ("TEAMS", Align::Left),
            ("STATE", Align::Left),
            ("FULL NAME", Align::Left),
            ("AGE", Align::Right),
        ];
        let row = |user: &UserView| {
            vec![
                user.name.clone(),
                user.role.clone(),
                kind(user).to_owned(),
                user.teams.join(","),
                if user.suspended.is_some() { "suspended" } else { "active" }.to_owned(),
                user.full_name.clone(),
                age(&user.created_at, now),
            ]
        };
        table(&columns, all.users.iter().map(row).collect(), cx.out.is_colored())
    })
}

const fn kind(user: &UserView) -> &'static str {
    if user.is_service { "service" } else { "person" }
}

fn page(user: &UserView) -> String {
    let source = if user.role_source == "host" { "by the host's configuration" } else { "set by an administrator" };
    let account = match (user.is_service, user.has_account) {
        (true, _) => "none: a service account",
        (false, true) => "known",
        (false, false) => "not seen yet",
    };
    let suspended = user.suspended.as_ref().map(|it| format!("since {}: {}", moment(&it.at), it.why));
    card(&[
        ("Name", user.name.clone()),
        ("Full name", user.full_name.clone()),
        ("Role", format!("{}, {source}", user.role)),
        ("Teams", user.teams.join(", ")),
        ("Default team", user.default_team.clone().unwrap_or_default()),
        ("Account of the host", account.to_owned()),
        ("Suspended", suspended.unwrap_or_default()),
        ("Added", moment(&user.created_at)),
        ("Id", user.id.clone()),
    ])
}

async fn change(cx: &Context, user: &UserArg, body: &ChangeUser) -> CliResult {
    let view: UserView = cx.client.patch(&user.path(), body).await?;
    cx.out.result(&view, || page(&view))
}

async fn suspend(cx: &Context, args: SuspendArgs) -> CliResult {
    let body = SuspendUser { why: args.why, stop_vms: args.stop_vms };
    let done: Suspended = cx.client.post(&format!("{}/suspend", args.user.path()), &body).await?;
    cx.out.result(&done, || format!("suspended {}", done.user.name))?;
    cx.out.say(&match (args.stop_vms, done.stopped_vms) {
        (true, 1) => "1 VM is being stopped".to_owned(),
        (true, count) => format!("{count} VMs are being stopped"),
        (false, _) => "VMs that run keep running; --stop-vms stops them".to_owned(),
    });
    Ok(())
}

async fn link(cx: &Context, args: LinkArgs) -> CliResult {
    let (provider, subject) = match args.oidc {
        Some(subject) => ("oidc", subject),
        None => ("ldap", args.ldap.unwrap_or_default()),
    };
    let body = LinkLogin { provider: provider.to_owned(), subject };
    let linked: LinkLogin = cx.client.post(&format!("{}/logins", args.user.path()), &body).await?;
    cx.out
        .result(&linked, || format!("{} logs in as {} {} from now on", args.user.user, linked.provider, linked.subject))
}

async fn rm(cx: &Context, user: &UserArg) -> CliResult {
    let view: UserView = cx.client.delete(&user.path()).await?;
    cx.out.result(&view, || format!("removed {}", view.name))?;
    if view.has_account {
        cx.out.note("as long as the host lets the account use the socket, it may come back as a new member");
    }
    Ok(())
}

async fn keys(cx: &Context, command: KeyCommand) -> CliResult {
    let path = |user: &UserArg| format!("{}/keys", user.path());
    match command {
        KeyCommand::Add { user, file } => key::add_at(cx, &path(&user), &key::read(&file)?).await,
        KeyCommand::List(user) => key::list_at(cx, &path(&user), "no keys yet").await,
        KeyCommand::Rm { user, key } => key::rm_at(cx, &path(&user), &key).await,
    }
}

/// Runs `gvm whoami`.
///
/// # Errors
/// See [`super::error::CliError`].
pub async fn whoami(cx: &Context) -> CliResult {
    let me: Me = cx.client.get("/v1/me").await?;
    cx.out.result(&me, || {
        card(&[
            ("Name", me.name.clone()),
            ("Full name", me.full_name.clone()),
            ("Role", me.role.clone()),
            ("Teams", me.teams.join(", ")),
            ("Default team", me.default_team.clone().unwrap_or_default()),
            ("SSH keys", me.keys.to_string()),
            ("Known by", me.via.clone()),
            ("Good for", me.scopes.join(", ")),
        ])
    })
}
