//! What users prove that they know their password by (SCRAM, RFC 5802; KIP-554): keys that were made of it, never the
//! password.
//!
//! Part of the meta shard's state, and of the image: every core may have to check a user.

use crate::command::Refused;
use crate::limits;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// A hash that SCRAM is used with. In logs by its place here.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub enum Mechanism {
    ScramSha256,
    ScramSha512,
}

/// What a broker needs to check one user by one mechanism. Whoever has it can not log in with it, but can try passwords
/// against it: it is never told, and never written where people read.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Credential {
    pub salt: Vec<u8>,
    pub iterations: u32,
    /// The hash of the key that the client shows.
    pub stored_key: Vec<u8>,
    /// What the broker signs with.
    pub server_key: Vec<u8>,
}

impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credential").field("iterations", &self.iterations).finish_non_exhaustive()
    }
}

/// Users by name. A user without a credential is not here.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Users {
    by_name: BTreeMap<String, BTreeMap<Mechanism, Credential>>,
}

/// Users in a snapshot, by name and mechanism.
pub(crate) type UsersSnapshot = Vec<(String, Vec<(Mechanism, Credential)>)>;

impl Users {
    pub fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }

    /// By mechanism. Never empty.
    pub fn user(&self, name: &str) -> Option<&BTreeMap<Mechanism, Credential>> {
        self.by_name.get(name)
    }

    /// In the order of their names.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.by_name.keys().map(String::as_str)
    }

    /// Whether [`Self::alter`] would do it.
    pub(crate) fn check(&self, name: &str, set: &[(Mechanism, Option<Credential>)]) -> Result<(), Refused> {
        let known = self.by_name.get(name);
        let is_gone = |mechanism| !known.is_some_and(|known| known.contains_key(mechanism));
        if set.iter().any(|(mechanism, credential)| credential.is_none() && is_gone(mechanism)) {
            return Err(Refused::UnknownCredential);
        }
        let is_new = known.is_none() && set.iter().any(|(_, credential)| credential.is_some());
        if is_new && self.by_name.len() >= limits::USERS_MAX {
            return Err(Refused::TooManyUsers { limit: limits::USERS_MAX });
        }
        Ok(())
    }

    /// Puts credentials in, in place of those of the same mechanism, and takes out those that are `None`.
    pub(crate) fn alter(&mut self, name: &str, set: &[(Mechanism, Option<Credential>)]) {
        let user = self.by_name.entry(name.to_owned()).or_default();
        for (mechanism, credential) in set {
            match credential {
                Some(credential) => drop(user.insert(*mechanism, credential.clone())),
                None => drop(user.remove(mechanism)),
            }
        }
        if user.is_empty() {
            self.by_name.remove(name);
        }
    }

    pub(crate) fn snapshot(&self) -> UsersSnapshot {
        let user = |user: &BTreeMap<Mechanism, Credential>| user.iter().map(|(m, c)| (*m, c.clone())).collect();
        self.by_name.iter().map(|(name, of)| (name.clone(), user(of))).collect()
    }

    /// What a snapshot holds; refuses what no state can have written.
    pub(crate) fn restore(snapshot: UsersSnapshot) -> Result<Users, String> {
        let mut all = Users::default();
        for (name, credentials) in snapshot {
            let said = credentials.len();
            let user: BTreeMap<Mechanism, Credential> = credentials.into_iter().collect();
            let is_whole = !user.is_empty() && user.len() == said;
            if !is_whole || all.by_name.contains_key(&name) {
                return Err(format!("user '{name}' is there twice, or without credentials"));
            }
            all.by_name.insert(name, user);
        }
        Ok(all)
    }
}
