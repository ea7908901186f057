//! Quotas: checked in the transaction that admits more, shown and set.
//!
//! ```text
//!   create, clone     nothing    -> the machine
//!   start, restart    off        -> up, with the cards that it gets
//!   change            as it was  -> larger, with other cards, or counting for another team
//! ```
//! Stopping, pausing, undeleting and what the manager does by itself make nothing grow: a machine that it starts again
//! after a restart of the host was wanted all the time, and counted.

use std::collections::BTreeMap;

use jiff::Timestamp;
use jiff::tz::TimeZone;

use super::{Manager, ManagerError, Result};
use crate::auth::policy::{Denied, Permit};
use crate::config::UTC;
use crate::model::id::{TeamId, UserId, VmId};
use crate::model::name::{ProfileName, TeamName};
use crate::model::principal::User;
use crate::model::quota::month::Month;
use crate::model::quota::{Limit, LimitSource, Quota, QuotaExceeded, QuotaKind, Usage, Whose, effective, exceeded};
use crate::model::vm::Desired;
use crate::store::quotas::{self, Holder, TeamLimits, UserLimits};
use crate::store::vms::VmFilter;
use crate::store::{Write, commit, teams, users};

/// What a change makes of one machine.
#[derive(Clone, Copy, Debug)]
pub(super) struct Growth<'a> {
    /// Who is told.
    pub asker: Option<&'a User>,
    /// The machine.
    pub vm: VmId,
    /// Whose it is.
    pub owner: UserId,
    /// The team that it counted for, and what it held.
    pub before: (Option<TeamId>, &'a Usage),
    /// The same afterwards.
    pub after: (Option<TeamId>, &'a Usage),
}

impl Manager {
    /// Refuses what would grow beyond a limit of its owner or of its team.
    pub(super) async fn check_quota(&self, tx: &mut Write, growth: Growth<'_>) -> Result<()> {
        let month = self.month(Timestamp::now());
        let Growth { asker, vm, owner, before, after } = growth;
        let limits = quotas::limits_of_user(tx, owner).await?;
        let (quota, _) = self.limits_over(&limits);
        let others = quotas::usage(tx, Holder::User(owner), Some(vm), month).await?;
        let mut over = exceeded(&Whose::Yours, &quota, &others, before.1, after.1);
        if !over.is_empty() && asker.is_none_or(|asker| asker.id != owner) {
            let name = users::read(tx, owner).await?.map(|row| row.user.name.to_string()).unwrap_or_default();
            over.iter_mut().for_each(|over| over.whose = Whose::User(name.clone()));
        }
        if let Some(team) = after.0 {
            let limits = quotas::limits_of_team(tx, team).await?;
            let others = quotas::usage(tx, Holder::Team(team), Some(vm), month).await?;
            let none = Usage::default();
            let before = if before.0 == Some(team) { before.1 } else { &none };
            over.extend(exceeded(&Whose::Team(limits.name), &limits.own, &others, before, after.1));
        }
        if over.is_empty() { Ok(()) } else { Err(QuotaExceeded(over).into()) }
    }

    /// The team that a machine is to count for: the one that is named, where its owner is in it, else the default one.
    pub(super) async fn team_for(&self, tx: &mut Write, owner: UserId, named: Option<&str>) -> Result<Option<TeamId>> {
        let Some(shown) = named else {
            let default = users::read(tx, owner).await?.and_then(|row| row.default_team);
            return Ok(match default {
                Some(team) if teams::has_member(tx, team, owner).await? => Some(team),
                _ => None,
            });
        };
        let not_there = || Denied::NotFound { kind: "team", shown: shown.to_owned() };
        let name: TeamName = shown.parse().map_err(|_| not_there())?;
        let team = teams::by_name(tx, &name).await?.ok_or_else(not_there)?.id;
        match teams::has_member(tx, team, owner).await? {
            true => Ok(Some(team)),
            false => Err(not_there().into()),
        }
    }

    /// This month as it is counted here, and how far it is.
    fn month(&self, now: Timestamp) -> (Month, Timestamp) {
        let zone = &self.config.people.zone;
        // A zone that is not known is refused where the configuration is read.
        let zone = if zone == UTC { TimeZone::UTC } else { TimeZone::get(zone).unwrap_or(TimeZone::UTC) };
        (Month::of(now, &zone), now)
    }

    fn limits_over(&self, limits: &UserLimits) -> (Quota, BTreeMap<QuotaKind, LimitSource>) {
        let mut narrowest_first = vec![(LimitSource::Own, &limits.own)];
        if let Some((team, member)) = &limits.member {
            narrowest_first.push((LimitSource::MemberOf(team.clone()), member));
        }
        narrowest_first.push((LimitSource::Usual, &self.config.people.quota));
        effective(&narrowest_first)
    }
}

/// One kind of what somebody holds and may hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuotaLine {
    /// Which.
    pub kind: QuotaKind,
    /// Held now.
    pub used: u64,
    /// Up to where; `None` where nobody says anything.
    pub limit: Option<Limit>,
    /// Who says it.
    pub source: Option<LimitSource>,
    /// What the next machine would add.
    pub next: u64,
}

/// What somebody holds and may hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuotaSheet {
    /// Whose: the name of a person or of a team.
    pub name: String,
    /// True for a team.
    pub is_team: bool,
    /// Every kind.
    pub lines: Vec<QuotaLine>,
    /// The profile of the next machine; `None` where there is none to be had.
    pub profile: Option<ProfileName>,
    /// Of a team: what it gives each member whose default team it is.
    pub member: Quota,
    /// When this month's time begins anew.
    pub month_end: Timestamp,
}

/// Changes of limits; `None` takes one away, so that the wider one counts again.
pub type LimitChanges = BTreeMap<QuotaKind, Option<Limit>>;

impl Manager {
    /// What the person of a permit, or the one who asks, holds and may hold.
    ///
    /// # Errors
    /// Where the person or the profile is not there.
    pub async fn quota_of_user(&self, permit: &Permit, profile: Option<&ProfileName>) -> Result<QuotaSheet> {
        let id = permit.subject().or(permit.user().map(|user| user.id));
        let user = match id {
            Some(id) => self.store.user(id).await?,
            None => None,
        };
        let user = user.ok_or_else(|| ManagerError::not_found("the user is gone"))?;
        let (profile, next) = self.next_machine(&user, profile).await?;
        let lines = self.quota_lines(user.id, &next).await?;
        let (name, member) = (user.name.to_string(), Quota::default());
        let month_end = self.month(Timestamp::now()).0.end;
        Ok(QuotaSheet { name, is_team: false, lines, profile, member, month_end })
    }

    /// What a person holds and may hold, and what one machine would add that is known already.
    pub(super) async fn quota_lines(&self, user: UserId, next: &Usage) -> Result<Vec<QuotaLine>> {
        let (quota, sources) = self.limits_over(&self.store.limits_of_user(user).await?);
        let used = self.store.usage(Holder::User(user), self.month(Timestamp::now())).await?;
        Ok(lines(&quota, &used, next, |kind| sources.get(&kind).cloned()))
    }

    /// What the team of a permit holds and may hold.
    ///
    /// # Errors
    /// Where the team or the profile is not there.
    pub async fn quota_of_team(&self, permit: &Permit, profile: Option<&ProfileName>) -> Result<QuotaSheet> {
        let id = permit.team().ok_or_else(no_team)?;
        let asker = permit.user().ok_or_else(|| ManagerError::denied("only a person can have a VM"))?;
        let TeamLimits { name, own, member } = self.store.limits_of_team(id).await?;
        let (profile, next) = self.next_machine(asker, profile).await?;
        let month = self.month(Timestamp::now());
        let used = self.store.usage(Holder::Team(id), month).await?;
        let lines = lines(&own, &used, &next, |kind| own.get(kind).map(|_| LimitSource::Own));
        Ok(QuotaSheet { name, is_team: true, lines, profile, member, month_end: month.0.end })
    }

    /// The profile that is named, else that of the person's newest machine, else the first that they may use; and what
    /// one more machine of it would hold.
    async fn next_machine(&self, user: &User, named: Option<&ProfileName>) -> Result<(Option<ProfileName>, Usage)> {
        if let Some(name) = named {
            let profile = self.profile_for(user, name).await?;
            return Ok((Some(name.clone()), Usage::asked((&profile).into(), Desired::Running)));
        }
        let filter = VmFilter { owner: Some(user.id), limit: u32::MAX, ..VmFilter::default() };
        let newest = self.store.vms(filter).await?.pop().map(|vm| vm.spec.profile);
        let loaded = self.load_profiles().await?;
        for name in newest.iter().chain(loaded.files.keys()) {
            // One that cannot be used is passed over.
            if let Ok(profile) = self.profile_for(user, name).await {
                return Ok((Some(name.clone()), Usage::asked((&profile).into(), Desired::Running)));
            }
        }
        Ok((None, Usage::default()))
    }

    /// Changes limits of the person of a permit.
    ///
    /// # Errors
    /// Where the person is gone.
    pub async fn set_user_quota(&self, permit: &Permit, changes: &LimitChanges) -> Result<()> {
        let gone = || ManagerError::not_found("the user is gone").hint("see `gvm user list`");
        let id = permit.subject().ok_or_else(gone)?;
        let mut tx = self.store.write().await?;
        let name = users::read(&mut tx, id).await?.ok_or_else(gone)?.user.name;
        let mut quota = quotas::limits_of_user(&mut tx, id).await?.own;
        apply(&mut quota, changes);
        quotas::set_user(&mut tx, id, &quota).await?;
        self.put_on_record_with(&mut tx, permit, "user.quota", name.as_str(), told("", changes)).await?;
        Ok(commit(tx).await?)
    }

    /// Changes limits of the team of a permit, and of each of its members.
    ///
    /// # Errors
    /// Where the team is gone.
    pub async fn set_team_quota(&self, permit: &Permit, own: &LimitChanges, member: &LimitChanges) -> Result<()> {
        let id = permit.team().ok_or_else(no_team)?;
        let mut tx = self.store.write().await?;
        let name = teams::read(&mut tx, id).await?.ok_or_else(no_team)?.name;
        let mut limits = quotas::limits_of_team(&mut tx, id).await?;
        apply(&mut limits.own, own);
        apply(&mut limits.member, member);
        quotas::set_team(&mut tx, id, &limits).await?;
        let told = [told("", own), told("each member: ", member)].into_iter().filter(|told| !told.is_empty());
        let told = told.collect::<Vec<_>>().join("; ");
        self.put_on_record_with(&mut tx, permit, "team.quota", name.as_str(), told).await?;
        Ok(commit(tx).await?)
    }
}

fn no_team() -> ManagerError {
    ManagerError::not_found("the team is gone").hint("see `gvm team list`")
}

fn apply(quota: &mut Quota, changes: &LimitChanges) {
    changes.iter().for_each(|(kind, limit)| quota.set(*kind, *limit));
}

/// Changes for the record.
fn told(of: &str, changes: &LimitChanges) -> String {
    let one = |(kind, limit): (&QuotaKind, &Option<Limit>)| match limit {
        Some(limit) => format!("{kind} {}", limit.show(*kind)),
        None => format!("{kind} default"),
    };
    let all = changes.iter().map(one).collect::<Vec<_>>().join(", ");
    if all.is_empty() { all } else { format!("{of}{all}") }
}

fn lines(
    quota: &Quota,
    used: &Usage,
    next: &Usage,
    source: impl Fn(QuotaKind) -> Option<LimitSource>,
) -> Vec<QuotaLine> {
    let line = |kind: &QuotaKind| QuotaLine {
        kind: *kind,
        used: used.get(*kind),
        limit: quota.get(*kind),
        source: source(*kind),
        // How long it will run is not known.
        next: if *kind == QuotaKind::GpuHours { 0 } else { next.get(*kind) },
    };
    QuotaKind::ALL.iter().map(line).collect()
}
