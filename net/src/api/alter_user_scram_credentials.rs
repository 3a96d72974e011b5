//! AlterUserScramCredentials (KIP-554): users and what they are known by. Kept for the listeners that will ask for it;
//! none does yet.

use super::describe_user_scram_credentials::mechanism;
use super::messages::{self, Fault};
use super::{Ctx, Outcome, Request};
use crate::codec::{Malformed, Reader, respond};
use crate::errors::Code;
use bytes::Bytes;
use camus_meta::limits::{SALT_BYTES_MAX, USER_NAME_BYTES_MAX};
use camus_meta::{Command, Credential, Decided, Done, Mechanism, Refused};
use hmac::digest::KeyInit;
use hmac::{Hmac, Mac};
use kafka_protocol::messages::alter_user_scram_credentials_response::{
    AlterUserScramCredentialsResponse, AlterUserScramCredentialsResult,
};
use kafka_protocol::protocol::StrBytes;
use sha2::{Digest, Sha256, Sha512};
use std::collections::BTreeMap;

/// Kafka's bounds: fewer are too easily tried, more let one login take the broker's time.
const ITERATIONS_MIN: i32 = 4096;
const ITERATIONS_MAX: i32 = 16_384;

/// What the password was made into by the client, by as many rounds as it says.
struct Salted {
    iterations: i32,
    salt: Bytes,
    password: Bytes,
}

/// What one user's part of a request says of one mechanism; `None`: it goes.
type Change = (i8, Option<Salted>);

/// By user, each in the order of the request.
fn read(request: &Request) -> Result<BTreeMap<StrBytes, Vec<Change>>, Malformed> {
    let mut r = Reader::new(&request.body, request.version >= 0);
    let gone = messages::structs(&mut r, 2, |r| Ok((r.string()?, (r.i8()?, None))))?;
    let set = messages::structs(&mut r, 8, |r| {
        let (user, mechanism, iterations) = (r.string()?, r.i8()?, r.i32()?);
        Ok((user, (mechanism, Some(Salted { iterations, salt: r.bytes()?, password: r.bytes()? }))))
    })?;
    r.tags()?;
    let mut users: BTreeMap<StrBytes, Vec<Change>> = BTreeMap::new();
    for (user, change) in gone.into_iter().chain(set) {
        users.entry(user).or_default().push(change);
    }
    Ok(users)
}

/// AlterUserScramCredentials 0, flexible from 0. Each user's changes are one: all of them or none.
pub fn handle(_: &mut Ctx<'_>, request: &Request) -> Outcome {
    let users = match read(request) {
        Ok(users) => users,
        Err(fault) => return fault.into(),
    };
    let mut commands = Vec::new();
    let mut planned = Vec::new();
    for (user, changes) in users {
        let done = command(&user, &changes).map(|command| commands.push(command));
        planned.push((user, done));
    }
    if commands.is_empty() {
        return reply(planned, Vec::new());
    }
    Outcome::Meta(commands, Box::new(move |_, decided| reply(planned, decided)))
}

fn command(user: &StrBytes, changes: &[Change]) -> Result<Command, Fault> {
    let unacceptable = |why: String| Err(Fault::new(Code::UnacceptableCredential, why));
    if user.is_empty() || user.len() > USER_NAME_BYTES_MAX {
        return unacceptable(format!("a user's name has 1 to {USER_NAME_BYTES_MAX} bytes"));
    }
    let mechanisms: Vec<i8> = changes.iter().map(|(mechanism, _)| *mechanism).collect();
    if !messages::named_twice(mechanisms.iter()).is_empty() {
        let why = format!("the request changes a mechanism of '{}' more than once", messages::shown(user));
        return Err(Fault::new(Code::DuplicateResource, why));
    }
    let mut set = Vec::new();
    for (number, salted) in changes {
        let Some(mechanism) = mechanism(*number) else {
            let why = "the mechanism is 1 (SCRAM-SHA-256) or 2 (SCRAM-SHA-512)";
            return Err(Fault::new(Code::UnsupportedSaslMechanism, why));
        };
        let Some(salted) = salted else {
            set.push((mechanism, None));
            continue;
        };
        let (iterations, salt) = (salted.iterations, &salted.salt);
        if !(ITERATIONS_MIN..=ITERATIONS_MAX).contains(&iterations) {
            return unacceptable(format!("{iterations} iterations are not within {ITERATIONS_MIN}..={ITERATIONS_MAX}"));
        }
        let bytes = key_bytes(mechanism);
        if salt.is_empty() || salt.len() > SALT_BYTES_MAX || salted.password.len() != bytes {
            return unacceptable(format!(
                "the salt has 1 to {SALT_BYTES_MAX} bytes and the salted password {bytes}, not {} and {}",
                salt.len(),
                salted.password.len()
            ));
        }
        set.push((mechanism, Some(credential(mechanism, salted))));
    }
    Ok(Command::AlterCredentials { user: user.to_string(), set })
}

fn key_bytes(mechanism: Mechanism) -> usize {
    match mechanism {
        Mechanism::ScramSha256 => 32,
        Mechanism::ScramSha512 => 64,
    }
}

/// RFC 5802, section 3: StoredKey and ServerKey.
fn credential(mechanism: Mechanism, salted: &Salted) -> Credential {
    let (stored_key, server_key) = match mechanism {
        Mechanism::ScramSha256 => {
            let key = |text: &[u8]| signed::<Hmac<Sha256>>(&salted.password, text);
            (Sha256::digest(key(b"Client Key")).to_vec(), key(b"Server Key"))
        }
        Mechanism::ScramSha512 => {
            let key = |text: &[u8]| signed::<Hmac<Sha512>>(&salted.password, text);
            (Sha512::digest(key(b"Client Key")).to_vec(), key(b"Server Key"))
        }
    };
    let iterations = u32::try_from(salted.iterations).expect("within its bounds");
    Credential { salt: salted.salt.to_vec(), iterations, stored_key, server_key }
}

fn signed<M: Mac + KeyInit>(key: &[u8], text: &[u8]) -> Vec<u8> {
    let mut mac = <M as KeyInit>::new_from_slice(key).expect("a key of any length will do");
    mac.update(text);
    mac.finalize().into_bytes().to_vec()
}

fn reply(planned: Vec<(StrBytes, Result<(), Fault>)>, decided: Vec<Decided>) -> Outcome {
    let mut decided = decided.into_iter();
    let results = planned.into_iter().map(|(user, planned)| {
        let done = planned.and_then(|()| match decided.next() {
            Some(Ok(Done::CredentialsAltered)) => Ok(()),
            Some(Err(Refused::UnknownCredential)) => {
                let why = format!("'{}' has no such credential to delete", messages::shown(&user));
                Err(Fault::new(Code::ResourceNotFound, why))
            }
            Some(Err(refused)) => Err(Fault::from(&refused)),
            other => unreachable!("an AlterCredentials is decided as CredentialsAltered, not as {other:?}"),
        });
        let (code, message) = messages::told(&done);
        let result = AlterUserScramCredentialsResult::default().with_user(user);
        result.with_error_code(code).with_error_message(message)
    });
    respond(&AlterUserScramCredentialsResponse::default().with_results(results.collect()), 0)
}

/// For tests of what asks for it: the number on the wire.
#[cfg(test)]
pub(super) fn upsertion(
    user: &str,
    mechanism: Mechanism,
    iterations: i32,
) -> kafka_protocol::messages::alter_user_scram_credentials_request::ScramCredentialUpsertion {
    kafka_protocol::messages::alter_user_scram_credentials_request::ScramCredentialUpsertion::default()
        .with_name(StrBytes::from_string(user.to_owned()))
        .with_mechanism(super::describe_user_scram_credentials::wire(mechanism))
        .with_iterations(iterations)
        .with_salt(Bytes::from_static(b"salt"))
        .with_salted_password(vec![7; key_bytes(mechanism)].into())
}

#[cfg(test)]
mod tests {
    use super::super::messages::testing::{World, encoded, survives_damage};
    use super::*;
    use kafka_protocol::messages::AlterUserScramCredentialsRequest;
    use kafka_protocol::messages::alter_user_scram_credentials_request::{
        ScramCredentialDeletion, ScramCredentialUpsertion,
    };

    fn deletion(user: &str, mechanism: i8) -> ScramCredentialDeletion {
        let name = StrBytes::from_string(user.to_owned());
        ScramCredentialDeletion::default().with_name(name).with_mechanism(mechanism)
    }

    fn alter(
        world: &mut World,
        gone: Vec<ScramCredentialDeletion>,
        set: Vec<ScramCredentialUpsertion>,
    ) -> Vec<(String, i16)> {
        let question = AlterUserScramCredentialsRequest::default().with_deletions(gone).with_upsertions(set);
        let answer: AlterUserScramCredentialsResponse = world.call(handle, 0, &question);
        let one = |result: AlterUserScramCredentialsResult| {
            assert_eq!(result.error_message.is_some(), result.error_code != 0);
            (result.user.to_string(), result.error_code)
        };
        answer.results.into_iter().map(one).collect()
    }

    /// A user could not log in with the password that was set.
    #[test]
    fn the_keys_are_those_of_the_rfc() {
        let hex = |bytes: &[u8]| bytes.iter().map(|b| format!("{b:02x}")).collect::<String>();
        // RFC 7677, section 3: password "pencil", this salt, 4096 rounds. The keys are checked by its signatures.
        let auth = "n=user,r=rOprNGfwEbeRWgbNEkqO,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,\
                    s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096,c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0";
        let password = [
            0xc4, 0xa4, 0x95, 0x10, 0x32, 0x3a, 0xb4, 0xf9, 0x52, 0xca, 0xc1, 0xfa, 0x99, 0x44, 0x19, 0x39, 0xe7, 0x8e,
            0xa7, 0x4d, 0x6b, 0xe8, 0x1d, 0xdf, 0x70, 0x96, 0xe8, 0x75, 0x13, 0xdc, 0x61, 0x5d,
        ];
        let salted =
            Salted { iterations: 4096, salt: Bytes::from_static(b"salt"), password: Bytes::copy_from_slice(&password) };
        let made = credential(Mechanism::ScramSha256, &salted);
        // v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=
        let signature = signed::<Hmac<Sha256>>(&made.server_key, auth.as_bytes());
        assert_eq!(hex(&signature), "eabae24d1062db75a9451ff0b6ea7e98c8546549ff741e672d3251b2397de46e");
        // the client shows its key behind p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=
        let proof = "747cdb65aa56224e2352137e52d7bdcad6a0f738df30782caa69a2cfb0277554";
        let signature = signed::<Hmac<Sha256>>(&made.stored_key, auth.as_bytes());
        let proof = (0..32).map(|at| u8::from_str_radix(&proof[2 * at..2 * at + 2], 16).unwrap());
        let client_key: Vec<u8> = proof.zip(signature).map(|(proof, signature)| proof ^ signature).collect();
        assert_eq!(Sha256::digest(&client_key).to_vec(), made.stored_key);
        assert_eq!(credential(Mechanism::ScramSha512, &salted).stored_key.len(), 64);
    }

    /// An operator would believe that a user is gone, or is there.
    #[test]
    fn a_user_is_set_changed_and_deleted() {
        let mut world = World::with_state();
        let known = |world: &World, user: &str| {
            let image = world.image.clone();
            image.users.user(user).map(|of| of.iter().map(|(m, c)| (*m, c.iterations)).collect::<Vec<_>>())
        };
        let set = vec![upsertion("u", Mechanism::ScramSha256, 4096), upsertion("v", Mechanism::ScramSha512, 8192)];
        assert_eq!(alter(&mut world, vec![], set), [("u".into(), 0), ("v".into(), 0)]);
        assert_eq!(known(&world, "u"), Some(vec![(Mechanism::ScramSha256, 4096)]));
        let both = alter(&mut world, vec![deletion("v", 2)], vec![upsertion("v", Mechanism::ScramSha256, 16_384)]);
        assert_eq!(both, [("v".into(), 0)]);
        assert_eq!(known(&world, "v"), Some(vec![(Mechanism::ScramSha256, 16_384)]));
        assert_eq!(
            alter(&mut world, vec![deletion("u", 1), deletion("v", 2)], vec![]),
            [("u".into(), 0), ("v".into(), 91)]
        );
        assert_eq!((known(&world, "u"), known(&world, "v").is_some()), (None, true));
    }

    /// A user who can not log in, or whose password is easily tried, would be taken for one that is well.
    #[test]
    fn what_no_user_can_be_known_by_is_refused_with_kafkas_code() {
        let good = || upsertion("u", Mechanism::ScramSha256, 4096);
        let name = |name: String| StrBytes::from_string(name);
        let cases = [
            (93, good().with_iterations(4095)),
            (93, good().with_iterations(16_385)),
            (93, good().with_iterations(-1)),
            (93, good().with_salt(Bytes::new())),
            (93, good().with_salt(vec![1; SALT_BYTES_MAX + 1].into())),
            (93, good().with_salted_password(vec![1; 31].into())),
            (93, good().with_name(name(String::new()))),
            (93, good().with_name(name("u".repeat(USER_NAME_BYTES_MAX + 1)))),
            (33, good().with_mechanism(0)),
            (33, good().with_mechanism(9)),
        ];
        for (code, bad) in cases {
            let mut world = World::with_state();
            let done = alter(&mut world, vec![], vec![bad.clone(), upsertion("x", Mechanism::ScramSha256, 4096)]);
            assert!(done.contains(&(bad.name.to_string(), code)), "{code}: {done:?}");
            assert!(done.contains(&("x".to_owned(), 0)), "the others are served");
            assert!(world.image.users.user(&bad.name).is_none());
        }
        let mut world = World::with_state();
        assert_eq!(alter(&mut world, vec![deletion("u", 1)], vec![good()]), [("u".into(), 92)]);
        assert_eq!(alter(&mut world, vec![deletion("u", 7)], vec![]), [("u".into(), 33)]);
        assert_eq!(alter(&mut world, vec![], vec![]), []);
    }

    #[test]
    fn no_bytes_end_in_a_panic() {
        survives_damage(handle, 0..=0, |version| {
            let question = AlterUserScramCredentialsRequest::default()
                .with_deletions(vec![deletion("a", 1)])
                .with_upsertions(vec![upsertion("b", Mechanism::ScramSha512, 4096)]);
            encoded(&question, version)
        });
    }
}
