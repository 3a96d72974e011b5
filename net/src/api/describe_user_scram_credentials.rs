//! DescribeUserScramCredentials: which users have a password. Camus does not authenticate yet, so that nobody has.

use super::messages::{self, Fault};
use super::{Ctx, Outcome, Request};
use crate::codec::{Malformed, Reader, respond};
use crate::errors::Code;
use kafka_protocol::messages::describe_user_scram_credentials_response::{
    DescribeUserScramCredentialsResponse, DescribeUserScramCredentialsResult,
};
use kafka_protocol::protocol::StrBytes;
use std::collections::BTreeSet;

/// The users; none of them: all.
fn read(request: &Request) -> Result<Vec<StrBytes>, Malformed> {
    let mut r = Reader::new(&request.body, request.version >= 0);
    let users = messages::nullable_structs(&mut r, 2, Reader::string)?;
    r.tags()?;
    Ok(users.unwrap_or_default())
}

/// DescribeUserScramCredentials 0, flexible from 0.
pub fn handle(_: &mut Ctx<'_>, request: &Request) -> Outcome {
    let users = match read(request) {
        Ok(users) => users,
        Err(fault) => return fault.into(),
    };
    let twice = messages::named_twice(users.iter());
    let one = |user: StrBytes| {
        let name = messages::shown(&user);
        let fault = if twice.contains(&user) {
            Fault::new(Code::DuplicateResource, format!("the request names the user '{name}' more than once"))
        } else {
            Fault::new(Code::ResourceNotFound, format!("there is no user '{name}': this broker authenticates nobody"))
        };
        DescribeUserScramCredentialsResult::default()
            .with_error_code(fault.code.wire())
            .with_error_message(fault.message())
            .with_user(user.clone())
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
    use super::super::messages::testing::{World, encoded, survives_damage};
    use super::*;
    use kafka_protocol::messages::DescribeUserScramCredentialsRequest;
    use kafka_protocol::messages::describe_user_scram_credentials_request::UserName;

    fn question(users: Option<&[&'static str]>) -> DescribeUserScramCredentialsRequest {
        let one = |name: &&'static str| UserName::default().with_name(StrBytes::from_static_str(name));
        let users = users.map(|users| users.iter().map(one).collect());
        DescribeUserScramCredentialsRequest::default().with_users(users)
    }

    fn ask(users: Option<&[&'static str]>) -> Vec<(String, i16)> {
        let answer: DescribeUserScramCredentialsResponse = World::new().call(handle, 0, &question(users));
        assert_eq!((answer.error_code, answer.error_message), (0, None));
        let one = |result: DescribeUserScramCredentialsResult| {
            assert!(result.error_message.is_some_and(|m| !m.is_empty()) && result.credential_infos.is_empty());
            (result.user.to_string(), result.error_code)
        };
        answer.results.into_iter().map(one).collect()
    }

    /// An operator would believe that there is a password where everybody may come in.
    #[test]
    fn nobody_has_a_password() {
        assert_eq!(ask(None), []);
        assert_eq!(ask(Some(&[])), []);
        let twice = ask(Some(&["bob", "alice", "bob", ""]));
        assert_eq!(twice, [(String::new(), 91), ("alice".into(), 91), ("bob".into(), 92)]);
    }

    #[test]
    fn no_bytes_end_in_a_panic() {
        survives_damage(handle, 0..=0, |version| encoded(&question(Some(&["alice", "bob"])), version));
    }
}
