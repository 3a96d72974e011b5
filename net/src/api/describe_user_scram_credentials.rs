//! DescribeUserScramCredentials (KIP-554): which users there are and by which mechanisms they are known; never by what.

use super::messages::{self, Fault};
use super::{Ctx, Outcome, Request};
use crate::codec::{Malformed, Reader, respond};
use crate::errors::Code;
use camus_meta::Mechanism;
use kafka_protocol::messages::describe_user_scram_credentials_response::{
    CredentialInfo, DescribeUserScramCredentialsResponse, DescribeUserScramCredentialsResult,
};
use kafka_protocol::protocol::StrBytes;
use std::collections::BTreeSet;

/// The number of a mechanism on the wire.
pub(super) fn wire(mechanism: Mechanism) -> i8 {
    match mechanism {
        Mechanism::ScramSha256 => 1,
        Mechanism::ScramSha512 => 2,
    }
}

pub(super) fn mechanism(wire: i8) -> Option<Mechanism> {
    match wire {
        1 => Some(Mechanism::ScramSha256),
        2 => Some(Mechanism::ScramSha512),
        _ => None,
    }
}

/// The users; none of them: all.
fn read(request: &Request) -> Result<Vec<StrBytes>, Malformed> {
    let mut r = Reader::new(&request.body, request.version >= 0);
    let users = messages::nullable_structs(&mut r, 2, Reader::string)?;
    r.tags()?;
    Ok(users.unwrap_or_default())
}

/// DescribeUserScramCredentials 0, flexible from 0.
pub fn handle(ctx: &mut Ctx<'_>, request: &Request) -> Outcome {
    let mut users = match read(request) {
        Ok(users) => users,
        Err(fault) => return fault.into(),
    };
    if users.is_empty() {
        users = ctx.image.users.names().map(|name| StrBytes::from_string(name.to_owned())).collect();
    }
    let twice = messages::named_twice(users.iter());
    let known = &ctx.image.users;
    let one = |user: StrBytes| {
        let name = messages::shown(&user);
        let result = DescribeUserScramCredentialsResult::default().with_error_message(None).with_user(user.clone());
        let fault = match known.user(&user) {
            _ if twice.contains(&user) => {
                Fault::new(Code::DuplicateResource, format!("the request names the user '{name}' more than once"))
            }
            None => Fault::new(Code::ResourceNotFound, format!("there is no user '{name}' with a SCRAM credential")),
            Some(credentials) => {
                let info = credentials.iter().map(|(mechanism, credential)| {
                    let iterations = i32::try_from(credential.iterations).unwrap_or(i32::MAX);
                    CredentialInfo::default().with_mechanism(wire(*mechanism)).with_iterations(iterations)
                });
                return result.with_credential_infos(info.collect());
            }
        };
        result.with_error_code(fault.code.wire()).with_error_message(fault.message())
    };
    // One answer for each name: clients look answers up by it.
    let named: BTreeSet<StrBytes> = users.into_iter().collect();
    let answer = DescribeUserScramCredentialsResponse::default()
        .with_error_message(None)
        .with_results(named.into_iter().map(one).collect());
    respond(&answer, request.version)
}

#[cfg(test)]
mod tests {
    use super::super::alter_user_scram_credentials::{self, upsertion};
    use super::super::messages::testing::{World, encoded, survives_damage};
    use super::*;
    use kafka_protocol::messages::describe_user_scram_credentials_request::UserName;
    use kafka_protocol::messages::{
        AlterUserScramCredentialsRequest, AlterUserScramCredentialsResponse, DescribeUserScramCredentialsRequest,
    };

    fn question(users: Option<&[&'static str]>) -> DescribeUserScramCredentialsRequest {
        let one = |name: &&'static str| UserName::default().with_name(StrBytes::from_static_str(name));
        let users = users.map(|users| users.iter().map(one).collect());
        DescribeUserScramCredentialsRequest::default().with_users(users)
    }

    type Told = (String, i16, Vec<(i8, i32)>);

    fn ask(world: &mut World, users: Option<&[&'static str]>) -> Vec<Told> {
        let answer: DescribeUserScramCredentialsResponse = world.call(handle, 0, &question(users));
        assert_eq!((answer.error_code, answer.error_message), (0, None));
        let one = |result: DescribeUserScramCredentialsResult| {
            assert_eq!(result.error_message.is_some_and(|m| !m.is_empty()), result.error_code != 0);
            let infos = result.credential_infos.iter().map(|info| (info.mechanism, info.iterations)).collect();
            (result.user.to_string(), result.error_code, infos)
        };
        answer.results.into_iter().map(one).collect()
    }

    /// An operator would believe that there is a password where there is none, or the other way round.
    #[test]
    fn users_are_told_with_how_they_are_known_and_others_are_unknown() {
        let mut world = World::with_state();
        assert_eq!(ask(&mut world, None), []);
        assert_eq!(ask(&mut world, Some(&[])), []);
        let set = vec![
            upsertion("alice", Mechanism::ScramSha256, 4096),
            upsertion("alice", Mechanism::ScramSha512, 8192),
            upsertion("carol", Mechanism::ScramSha512, 4096),
        ];
        let set = AlterUserScramCredentialsRequest::default().with_upsertions(set);
        let _: AlterUserScramCredentialsResponse = world.call(alter_user_scram_credentials::handle, 0, &set);
        let alice = ("alice".to_owned(), 0, vec![(1, 4096), (2, 8192)]);
        let carol = ("carol".to_owned(), 0, vec![(2, 4096)]);
        assert_eq!(ask(&mut world, None), [alice.clone(), carol.clone()]);
        let told = ask(&mut world, Some(&["bob", "alice", "carol", "bob", "", "carol"]));
        assert_eq!(
            told,
            [(String::new(), 91, vec![]), alice, ("bob".to_owned(), 92, vec![]), ("carol".to_owned(), 92, vec![])]
        );
    }

    #[test]
    fn no_bytes_end_in_a_panic() {
        survives_damage(handle, 0..=0, |version| encoded(&question(Some(&["alice", "bob"])), version));
    }
}
