//! `gvm key`: the SSH keys that open one's machines; and the first one, registered at the first `gvm create`.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use jiff::Timestamp;
use serde::de::IgnoredAny;

use super::context::Context;
use super::error::{CliError, CliResult};
use super::files;
use super::identity::{self, KEY_FILE_MAX, LocalKey};
use super::output::Answer;
use super::table::{Align, age, table};
use crate::api::client::segment;
use crate::api::types::{AddKey, KeyList, KeyView, Me};
use crate::model::access::PublicKey;
use crate::model::principal::Scope;

/// One's own keys.
const OWN: &str = "/v1/keys";

/// SSH keys that open your machines.
#[derive(Debug, Subcommand)]
pub enum KeyCommand {
    /// Register a public key
    Add(AddArgs),
    /// List your registered keys
    #[command(visible_alias = "ls")]
    List,
    /// Take a registered key away
    Rm(RmArgs),
}

/// Options of `key add`.
#[derive(Debug, Args)]
pub struct AddArgs {
    /// Public key file, or - for standard input [default: the first of ~/.ssh/id_*.pub]
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,
}

/// Options of `key rm`.
#[derive(Debug, Args)]
pub struct RmArgs {
    /// Id or fingerprint, as `gvm key list` shows them
    #[arg(value_name = "KEY", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    key: String,
}

/// Runs `gvm key`.
///
/// # Errors
/// See [`CliError`].
pub async fn run(cx: &Context, command: KeyCommand) -> CliResult {
    match command {
        KeyCommand::Add(args) => add(cx, args).await,
        KeyCommand::List => list_at(cx, OWN, "no keys yet; register one with `gvm key add`").await,
        KeyCommand::Rm(args) => rm_at(cx, OWN, &args.key).await,
    }
}

async fn add(cx: &Context, args: AddArgs) -> CliResult {
    let key = match args.file {
        Some(file) => read(&file)?,
        None => {
            let ssh = files::home()?.join(".ssh");
            let first = identity::local_keys(&ssh).into_iter().next().ok_or_else(|| {
                CliError::invalid(format!("there is no public key in {}", ssh.display()))
                    .hint("make one with `ssh-keygen -t ed25519`, or give a file")
            })?;
            first.key
        }
    };
    add_at(cx, OWN, &key).await
}

/// The public key in a file.
///
/// # Errors
/// Where it cannot be read, or is none.
pub fn read(file: &Path) -> CliResult<PublicKey> {
    let text = files::read_text(file, KEY_FILE_MAX)?;
    text.parse().map_err(|e| CliError::invalid(format!("{}: {e}", file.display())))
}

/// Registers a key with those at a path of the API.
///
/// # Errors
/// See [`CliError`].
pub async fn add_at(cx: &Context, path: &str, key: &PublicKey) -> CliResult {
    let added: KeyView = cx.client.post(path, &AddKey { public_key: key.to_string() }).await?;
    cx.out.result(&added, || format!("registered {} {} {}", added.kind, added.fingerprint, added.comment))
}

/// Lists the keys at a path of the API; `none` is said where there are none.
///
/// # Errors
/// See [`CliError`].
pub async fn list_at(cx: &Context, path: &str, none: &str) -> CliResult {
    let list: KeyList = cx.client.get(path).await?;
    if list.keys.is_empty() && !cx.out.is_json() {
        cx.out.say(none);
        return Ok(());
    }
    let now = Timestamp::now();
    cx.out.result(&list, || {
        let columns =
            [("FINGERPRINT", Align::Left), ("KIND", Align::Left), ("COMMENT", Align::Left), ("AGE", Align::Right)];
        let row = |key: &KeyView| {
            vec![key.fingerprint.clone(), key.kind.clone(), key.comment.clone(), age(&key.added_at, now)]
        };
        table(&columns, list.keys.iter().map(row).collect(), cx.out.is_colored())
    })
}

/// Takes a key away from those at a path of the API.
///
/// # Errors
/// See [`CliError`].
pub async fn rm_at(cx: &Context, path: &str, key: &str) -> CliResult {
    let _: IgnoredAny = cx.client.delete(&format!("{path}/{}", segment(key))).await?;
    cx.out.result(&serde_json::json!({ "removed": key }), || format!("removed {key}"))
}

async fn register(cx: &Context, key: &PublicKey) -> CliResult<KeyView> {
    Ok(cx.client.post(OWN, &AddKey { public_key: key.to_string() }).await?)
}

/// Sees to it that the user has a key before the first machine is made: offers those of `~/.ssh`, takes the best
/// one where nobody can be asked, makes one where there is none.
///
/// # Errors
/// When the user wants none of them, or none can be made or registered.
pub async fn ensure_first_key(cx: &Context) -> CliResult {
    let me: Me = cx.client.get("/v1/me").await?;
    // A login that is not good for keys cannot look for them, nor register one.
    let has_scope = me.scopes.is_empty() || me.scopes.iter().any(|scope| scope == Scope::Account.as_str());
    if me.keys > 0 || !has_scope {
        return Ok(());
    }
    let ssh = files::home()?.join(".ssh");
    let found = identity::local_keys(&ssh);
    let chosen = if cx.out.can_ask() { choose(cx, &ssh, found)? } else { pick(cx, &ssh, found)? };
    let added = register(cx, &chosen.key).await?;
    cx.out.note(&format!("registered your key {} ({})", chosen.path.display(), added.fingerprint));
    Ok(())
}

fn pick(cx: &Context, ssh: &Path, found: Vec<LocalKey>) -> CliResult<LocalKey> {
    match found.into_iter().next() {
        Some(key) => Ok(key),
        None => make(cx, ssh),
    }
}

fn choose(cx: &Context, ssh: &Path, found: Vec<LocalKey>) -> CliResult<LocalKey> {
    cx.out.say("No SSH key of yours is registered yet; your machines let you in by it.");
    for key in found {
        let question = format!("Register {} ({})?", key.path.display(), identity::fingerprint(&key.key));
        if cx.out.ask(&question, Answer::Yes)? == Answer::Yes {
            return Ok(key);
        }
    }
    if cx.out.ask("Make a key for gvm alone, without a passphrase?", Answer::Yes)? == Answer::Yes {
        return make(cx, ssh);
    }
    Err(CliError::invalid("without a registered key nobody could log in to the machine")
        .hint("register one with `gvm key add FILE`"))
}

fn make(cx: &Context, ssh: &Path) -> CliResult<LocalKey> {
    let key = identity::make_key(ssh)?;
    let private = key.path.with_extension("");
    cx.out.note(&format!("made a key for gvm, without a passphrase: {}", private.display()));
    Ok(key)
}
