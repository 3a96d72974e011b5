//! What an administrator asks: describe, list, delete.

use super::ask::{Described, DescribedMember, GroupAnswer, GroupKind, GroupOut, GroupRefusal, GroupState, Listed};
use super::coordinator::{Coordinator, UnderWay};
use crate::command::Command;
use crate::limits;
use crate::state::State;
use camus_engine::shard::api::Ticket;
use std::collections::BTreeMap;

impl Coordinator {
    /// Not found: there is no such group, or it is one of KIP-848, which is not described so.
    pub(super) fn describe(&self, name: &str, state: &State) -> Result<Described, GroupRefusal> {
        if self.consumers.contains_key(name) {
            return Err(GroupRefusal::GroupNotFound);
        }
        let Some(group) = self.groups.get(name) else {
            state.offsets().group(name).ok_or(GroupRefusal::GroupNotFound)?;
            let (protocol_type, protocol) = (String::new(), String::new());
            return Ok(Described { state: GroupState::Empty, protocol_type, protocol, members: Vec::new() });
        };
        let stable = group.state == GroupState::Stable;
        let members = group.members.iter().map(|(id, member)| DescribedMember {
            id: id.clone(),
            instance: member.instance.clone(),
            client_id: member.client_id.clone(),
            client_host: member.client_host.clone(),
            metadata: member.speaks(&group.protocol).filter(|_| stable).cloned().unwrap_or_default(),
            assignment: if stable { member.assignment.clone() } else { Default::default() },
        });
        Ok(Described {
            state: group.state,
            protocol_type: group.protocol_type.clone(),
            protocol: if stable { group.protocol.clone() } else { String::new() },
            members: members.collect(),
        })
    }

    /// Groups with members, and groups that have committed something, in the order of their names.
    pub(super) fn list(&self, state: &State) -> Vec<Listed> {
        let one = |name: &str, protocol_type: &str, kind: GroupKind, state: &'static str| Listed {
            group: name.to_owned(),
            protocol_type: protocol_type.to_owned(),
            kind,
            state,
        };
        let mut all = BTreeMap::new();
        for (name, _) in state.offsets().groups() {
            all.insert(name, one(name, "", GroupKind::Classic, GroupState::Empty.name()));
        }
        for (name, group) in &self.groups {
            all.insert(name.as_str(), one(name, &group.protocol_type, GroupKind::Classic, group.state.name()));
        }
        for (name, group) in &self.consumers {
            all.insert(name.as_str(), one(name, "consumer", GroupKind::Consumer, group.state_name()));
        }
        all.into_values().collect()
    }

    /// Removes groups without members, and what they committed.
    pub(super) fn delete_groups(&mut self, ticket: Ticket, groups: Vec<String>, state: &State, out: &mut GroupOut) {
        let mut answers = Vec::with_capacity(groups.len());
        let mut removed = Vec::new();
        for (at, group) in groups.into_iter().enumerate() {
            let classic = self.groups.get(&group).map(|members| members.state == GroupState::Empty);
            let is_empty = classic.or(self.consumers.get(&group).map(|members| members.members.is_empty()));
            let answer = match is_empty {
                Some(false) => Err(GroupRefusal::NonEmptyGroup),
                None if state.offsets().group(&group).is_none() => Err(GroupRefusal::GroupNotFound),
                Some(true) | None if removed.len() >= limits::GROUPS_DELETED_AT_ONCE_MAX => Err(GroupRefusal::Busy),
                Some(true) | None => {
                    removed.push((at, group));
                    Ok(())
                }
            };
            answers.push(answer);
        }
        if removed.is_empty() {
            out.answers.push((ticket, GroupAnswer::GroupsDeleted(answers)));
            return;
        }
        let names = removed.iter().map(|(_, group)| group.clone()).collect();
        let under_way = UnderWay::DeleteGroups { ticket, answers, groups: removed };
        self.propose(under_way, Command::DeleteGroups { groups: names }, out);
    }
}
