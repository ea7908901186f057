//! Links between logins of a provider and users, by an administrator's hand.

use jiff::Timestamp;

use super::super::{Manager, ManagerError, Result};
use super::not_configured;
use crate::auth::policy::Permit;
use crate::model::login::MAX_WORD;
use crate::model::principal::Provider;
use crate::store::{StoreError, commit, identities, users};

impl Manager {
    /// A provider's subject is the permit's person from now on: what an ID token calls `sub`, or an entry's name (or its
    /// `login.ldap.subject_attribute`).
    ///
    /// # Errors
    /// Where the provider is not configured, or the login is somebody's already.
    pub async fn link_login(&self, permit: &Permit, provider: Provider, subject: &str) -> Result<()> {
        let subject = self.full_subject(provider, subject)?;
        let id = permit.subject().ok_or_else(|| ManagerError::not_found("the user is gone"))?;
        let mut tx = self.store.write().await?;
        let row = users::read(&mut tx, id).await?.ok_or_else(|| ManagerError::not_found("the user is gone"))?;
        identities::link(&mut tx, provider, &subject, id, Timestamp::now()).await.map_err(|e| match e {
            StoreError::Taken(_) => ManagerError::conflict("this login belongs to a user already")
                .hint("gvm user rm removes that user, and the link with it"),
            other => other.into(),
        })?;
        self.put_on_record(&mut tx, permit, "user.link", &format!("{} {provider} {subject}", row.user.name)).await?;
        Ok(commit(tx).await?)
    }

    /// As the provider's logins are kept.
    fn full_subject(&self, provider: Provider, subject: &str) -> Result<String> {
        let is_usable = !subject.is_empty() && subject.len() <= MAX_WORD && !subject.chars().any(char::is_control);
        if !is_usable {
            return Err(ManagerError::invalid(
                "that can be no login: it is empty, too long, or has control characters",
            ));
        }
        let login = &self.config.login;
        match (provider, &login.oidc, &login.ldap) {
            (Provider::Oidc, Some(oidc), _) => Ok(format!("{} {subject}", oidc.issuer)),
            (Provider::Ldap, _, Some(ldap)) if ldap.subject_attribute.is_none() => Ok(subject.to_lowercase()),
            (Provider::Ldap, _, Some(_)) => Ok(subject.to_owned()),
            (Provider::Pam, ..) => Err(ManagerError::invalid("a login of the host is the account of its name")),
            (provider, ..) => Err(not_configured(provider.as_str())),
        }
    }
}
