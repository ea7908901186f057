//! `gvm team`: groups of people.

use clap::{Args, Subcommand};
use jiff::Timestamp;

use super::args::checked;
use super::context::Context;
use super::error::CliResult;
use super::table::{Align, age, card, moment, table};
use super::user::user_ref;
use crate::api::client::segment;
use crate::api::types::{AddTeam, ChangeTeam, MemberList, TeamList, TeamView};
use crate::model::id::TeamId;
use crate::model::name::TeamName;

/// Members of one page.
const PAGE: u32 = 1000;

/// `gvm team`
#[derive(Debug, Subcommand)]
pub enum TeamCommand {
    /// Make a team
    Add {
        /// Name
        #[arg(value_name = "NAME", value_parser = checked::<TeamName>)]
        name: String,
        /// What it is for
        #[arg(long, value_name = "TEXT")]
        description: Option<String>,
    },
    /// List your teams; all teams for operators
    #[command(visible_alias = "ls")]
    List,
    /// Show a team and who is in it
    Show(TeamArg),
    /// Change name or description of a team
    Set(SetArgs),
    /// Dissolve a team for which no machine counts
    Rm(TeamArg),
    /// Put people into a team
    AddMember(MemberArgs),
    /// Take people out of a team
    RmMember(MemberArgs),
}

/// Which.
#[derive(Clone, Debug, Args)]
pub struct TeamArg {
    /// Name or id
    #[arg(value_name = "TEAM", value_parser = team_ref)]
    team: String,
}

impl TeamArg {
    fn path(&self) -> String {
        format!("/v1/teams/{}", segment(&self.team))
    }
}

fn team_ref(text: &str) -> Result<String, String> {
    if text.parse::<TeamId>().is_ok() {
        return Ok(text.to_owned());
    }
    text.parse::<TeamName>().map(|name| name.to_string()).map_err(|e| e.to_string())
}

/// Options of `team set`.
#[derive(Debug, Args)]
#[group(required = true, multiple = true, id = "changes", args = ["name", "description"])]
pub struct SetArgs {
    #[command(flatten)]
    team: TeamArg,
    /// Another name
    #[arg(long, value_name = "NAME", value_parser = checked::<TeamName>)]
    name: Option<String>,
    /// What it is for
    #[arg(long, value_name = "TEXT")]
    description: Option<String>,
}

/// Options of `team add-member` and `team rm-member`.
#[derive(Debug, Args)]
pub struct MemberArgs {
    #[command(flatten)]
    team: TeamArg,
    /// Logins or ids
    #[arg(value_name = "USER", required = true, value_parser = user_ref)]
    users: Vec<String>,
}

/// Runs `gvm team`.
///
/// # Errors
/// See [`super::error::CliError`].
pub async fn run(cx: &Context, command: TeamCommand) -> CliResult {
    match command {
        TeamCommand::Add { name, description } => {
            let body = AddTeam { name, description: description.unwrap_or_default() };
            let view: TeamView = cx.client.post("/v1/teams", &body).await?;
            cx.out.result(&view, || format!("made the team {}", view.name))
        }
        TeamCommand::List => list(cx).await,
        TeamCommand::Show(team) => show(cx, &team).await,
        TeamCommand::Set(args) => {
            let body = ChangeTeam { name: args.name, description: args.description };
            let view: TeamView = cx.client.patch(&args.team.path(), &body).await?;
            cx.out.result(&view, || page(&view, &[]))
        }
        TeamCommand::Rm(team) => {
            let view: TeamView = cx.client.delete(&team.path()).await?;
            cx.out.result(&view, || format!("dissolved the team {}", view.name))
        }
        TeamCommand::AddMember(args) => change_members(cx, &args, Membership::Add).await,
        TeamCommand::RmMember(args) => change_members(cx, &args, Membership::Remove).await,
    }
}

#[derive(Clone, Copy)]
enum Membership {
    Add,
    Remove,
}

/// Each of them, whatever becomes of the others; the command ends with the first refusal.
async fn change_members(cx: &Context, args: &MemberArgs, change: Membership) -> CliResult {
    let (mut last, mut first) = (None, None);
    for user in &args.users {
        let path = format!("{}/members/{}", args.team.path(), segment(user));
        let done = match change {
            Membership::Add => cx.client.put(&path).await,
            Membership::Remove => cx.client.delete(&path).await,
        };
        match done {
            Ok(team) => last = Some(team),
            Err(error) if error.is_passing() => return Err(error.into()),
            Err(error) if first.is_none() => first = Some(error),
            Err(error) => cx.out.note(&error.to_string()),
        }
    }
    tell(cx, last)?;
    first.map_or(Ok(()), |error| Err(error.into()))
}

fn tell(cx: &Context, team: Option<TeamView>) -> CliResult {
    let Some(team) = team else { return Ok(()) };
    cx.out.result(&team, || match team.members {
        1 => format!("1 member is in the team {}", team.name),
        count => format!("{count} members are in the team {}", team.name),
    })
}

async fn list(cx: &Context) -> CliResult {
    let list: TeamList = cx.client.get("/v1/teams").await?;
    if list.teams.is_empty() && !cx.out.is_json() {
        cx.out.say("no teams");
        return Ok(());
    }
    let now = Timestamp::now();
    cx.out.result(&list, || {
        let columns =
            [("NAME", Align::Left), ("MEMBERS", Align::Right), ("DESCRIPTION", Align::Left), ("AGE", Align::Right)];
        let row = |team: &TeamView| {
            vec![team.name.clone(), team.members.to_string(), team.description.clone(), age(&team.created_at, now)]
        };
        table(&columns, list.teams.iter().map(row).collect(), cx.out.is_colored())
    })
}

/// A team with everybody in it.
#[derive(serde::Serialize)]
struct Whole<'a> {
    #[serde(flatten)]
    team: &'a TeamView,
    member_names: &'a [String],
}

async fn show(cx: &Context, team: &TeamArg) -> CliResult {
    let view: TeamView = cx.client.get(&team.path()).await?;
    let (mut members, mut after) = (Vec::new(), String::new());
    loop {
        let path = format!("{}/members?after={}&limit={PAGE}", team.path(), segment(&after));
        let page: MemberList = cx.client.get(&path).await?;
        members.extend(page.members);
        match page.next {
            Some(next) if next > after => after = next,
            _ => break,
        }
    }
    cx.out.result(&Whole { team: &view, member_names: &members }, || page(&view, &members))
}

fn page(team: &TeamView, members: &[String]) -> String {
    card(&[
        ("Name", team.name.clone()),
        ("Description", team.description.clone()),
        ("Members", if members.is_empty() { team.members.to_string() } else { members.join(", ") }),
        ("Made", moment(&team.created_at)),
        ("Id", team.id.clone()),
    ])
}
