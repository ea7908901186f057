//! `gvm token`: tokens for programs.

use clap::{Args, Subcommand};
use jiff::Timestamp;

use super::args::checked;
use super::context::Context;
use super::error::CliResult;
use super::table::{Align, age, moment, table};
use crate::api::client::segment;
use crate::api::types::{CreateToken, CreatedToken, TokenList, TokenView};
use crate::model::principal::Scope;
use crate::model::token::{TokenText, check_name};
use crate::model::units::Seconds;

/// API tokens of your programs.
#[derive(Debug, Subcommand)]
pub enum TokenCommand {
    /// Make a token and print it, once
    Create(CreateArgs),
    /// List tokens; never the tokens themselves
    #[command(visible_alias = "ls")]
    List(ListArgs),
    /// Revoke a token: it and what was opened with it end at once
    #[command(visible_alias = "rm")]
    Revoke(RevokeArgs),
}

/// Options of `token create`.
#[derive(Debug, Args)]
pub struct CreateArgs {
    /// A word for it
    #[arg(value_name = "NAME", value_parser = name)]
    name: String,
    /// What it is good for: read, vm, console, account, admin; may be repeated [default: all that your login is]
    #[arg(long = "scope", value_name = "SCOPE", value_delimiter = ',', value_parser = checked::<Scope>)]
    scopes: Vec<String>,
    /// How long it lives, such as 30d [default: as the administrator set it, 90d]
    #[arg(long, value_name = "TIME", value_parser = checked::<Seconds>)]
    ttl: Option<String>,
    /// The service account that it is for (administrators)
    #[arg(long, value_name = "SERVICE")]
    user: Option<String>,
}

/// Options of `token list`.
#[derive(Debug, Args)]
pub struct ListArgs {
    /// Whose (administrators) [default: your own]
    #[arg(long, value_name = "USER")]
    user: Option<String>,
}

/// Options of `token revoke`.
#[derive(Debug, Args)]
pub struct RevokeArgs {
    /// Name or id, as `gvm token list` shows them
    #[arg(value_name = "TOKEN", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    token: String,
    /// Whose (administrators) [default: your own]
    #[arg(long, value_name = "USER")]
    user: Option<String>,
}

fn name(text: &str) -> Result<String, String> {
    check_name(text).map(|()| text.to_owned())
}

/// Runs `gvm token`.
///
/// # Errors
/// See [`super::error::CliError`].
pub async fn run(cx: &Context, command: TokenCommand) -> CliResult {
    match command {
        TokenCommand::Create(args) => create(cx, args).await,
        TokenCommand::List(args) => list(cx, &args).await,
        TokenCommand::Revoke(args) => revoke(cx, &args).await,
    }
}

async fn create(cx: &Context, args: CreateArgs) -> CliResult {
    let scopes = (!args.scopes.is_empty()).then_some(args.scopes);
    let wish = CreateToken { name: args.name, scopes, ttl: args.ttl, user: args.user };
    let made: CreatedToken = cx.client.post("/v1/tokens", &wish).await?;
    // The token alone on standard output, for TOKEN=$(gvm token create ci).
    cx.out.note(&format!(
        "the token {} is good for {} until {}; it is not shown again",
        made.info.name,
        made.info.scopes.join(","),
        moment(&made.info.expires_at)
    ));
    cx.out.result(&made, || made.token.clone())
}

async fn list(cx: &Context, args: &ListArgs) -> CliResult {
    let list: TokenList = cx.client.get(&format!("/v1/tokens{}", of(args.user.as_deref()))).await?;
    if list.tokens.is_empty() && !cx.out.is_json() {
        cx.out.say("no tokens; make one with `gvm token create NAME`");
        return Ok(());
    }
    let now = Timestamp::now();
    cx.out.result(&list, || {
        let columns = [
            ("ID", Align::Left),
            ("NAME", Align::Left),
            ("KIND", Align::Left),
            ("SCOPES", Align::Left),
            ("ENDS", Align::Left),
            ("USED", Align::Right),
            ("FROM", Align::Left),
        ];
        let row = |token: &TokenView| {
            vec![
                token.id.clone(),
                token.name.clone(),
                token.kind.clone(),
                token.scopes.join(","),
                moment(&token.expires_at),
                token.last_used_at.as_deref().map(|at| age(at, now)).unwrap_or_default(),
                token.last_used_from.clone().unwrap_or_default(),
            ]
        };
        table(&columns, list.tokens.iter().map(row).collect(), cx.out.is_colored())
    })
}

async fn revoke(cx: &Context, args: &RevokeArgs) -> CliResult {
    // Somebody has the token itself at hand: only its id, which is no secret, goes into the URL.
    let shown = args.token.parse::<TokenText>().map_or_else(|_| args.token.clone(), |text| text.id().to_string());
    let path = format!("/v1/tokens/{}{}", segment(&shown), of(args.user.as_deref()));
    let revoked: TokenView = cx.client.delete(&path).await?;
    cx.out.result(&revoked, || format!("revoked {}", revoked.name))
}

fn of(user: Option<&str>) -> String {
    user.map(|user| format!("?user={}", segment(user))).unwrap_or_default()
}
