//! What a start of the broker would meet: who has the data directory, and whether its addresses can be opened.

use super::{About, Finding};
use crate::doctor::facts::{Address, Facts, Open, Place};

const GROUP: &str = "start";
const LOCK: &str = "lock";

pub fn lock(facts: &Facts) -> Finding {
    let why = "one broker has a data directory: a second one ends at once (CAM-0102)";
    let about = About { group: GROUP, name: LOCK, why };
    if matches!(facts.disk.place, Place::NotADirectory | Place::Unreadable(_)) {
        return about.see("data directory");
    }
    let Some(holder) = &facts.start.holder else { return about.pass("no broker has the data directory") };
    let beside = if facts.floor.is_ok() { "; the disk was measured beside its work" } else { "" };
    let dir = facts.disk.data_dir.display();
    let command = holder.pid.map_or_else(|| format!("fuser -v {dir}"), |pid| format!("ps -fp {pid}"));
    about.warn(format!("{}: no other one can start{beside}", holder.said), command).look()
}

pub fn listeners(facts: &Facts) -> Finding {
    let why = "where clients come to; a broker that can not open it ends at once (CAM-0201)";
    let about = About { group: GROUP, name: "listeners", why };
    opened(facts, about, &facts.start.listeners, "--listen")
}

pub fn http(facts: &Facts) -> Finding {
    let why = "health and metrics; a broker that can not open it ends at once (CAM-0201)";
    let about = About { group: GROUP, name: "http", why };
    opened(facts, about, std::slice::from_ref(&facts.start.http), "--http")
}

/// `flag`: which one of `serve` asks for them.
fn opened(facts: &Facts, about: About, addresses: &[Address], flag: &str) -> Finding {
    let all = |address: fn(&Address) -> String| addresses.iter().map(address).collect::<Vec<_>>().join(",");
    let shut = addresses.iter().find(|address| address.open != Open::Yes);
    let Some(shut) = shut.or(addresses.first()) else { return about.pass("none") };
    let (asked, port) = (&shut.asked, shut.port);
    let who = format!("ss -ltnp 'sport = :{port}'");
    let shown = match &shut.open {
        Open::Yes => return about.pass(format!("{} can be opened", all(|address| address.asked.clone()))),
        // By the broker that has the data directory, as it should be.
        Open::Taken if facts.start.holder.is_some() => {
            return about.skip(format!("{asked} is taken while a broker runs: see {LOCK}"));
        }
        Open::Taken => format!("{asked} is taken by another program (which: {who})"),
        Open::NotAllowed => format!("{asked}: this user has no right to ports below 1024"),
        Open::No(said) => {
            let fix = format!("getent hosts {}; ip -br address   (which has this host?)", shut.host);
            return about.fail(format!("{asked}: {said}"), fix).look();
        }
    };
    if shut.free_port.is_none() {
        return about.fail(shown, who).look();
    }
    let others = all(|address| match (address.free_port, address.host.contains(':')) {
        (None, _) => address.asked.clone(),
        (Some(port), true) => format!("[{}]:{port}", address.host),
        (Some(port), false) => format!("{}:{port}", address.host),
    });
    about.fail(shown, format!("camus serve {flag} {others}   (a port that is free now)"))
}

#[cfg(test)]
mod tests {
    use super::super::Verdict::{Fail, Pass, Skip, Warn};
    use super::*;
    use crate::doctor::facts::Holder;
    use crate::doctor::recorded::judged;

    fn hold(facts: &mut Facts) {
        facts.start.holder = Some(Holder { pid: Some(4711), said: "process 4711 (camus serve) has it".to_owned() });
    }

    fn take(address: &mut Address) {
        (address.open, address.free_port) = (Open::Taken, Some(address.port + 1));
    }

    /// Lost if it fails: a broker that does not start, after a check that passed.
    #[test]
    fn a_running_broker_is_named_and_what_was_measured_beside_it() {
        assert_eq!(judged(lock, |_| {}).verdict, Pass);
        let held = judged(lock, hold);
        assert_eq!((held.verdict, held.see.as_deref()), (Warn, Some("ps -fp 4711")));
        assert!(held.measured.contains("4711") && held.measured.contains("measured beside"), "{}", held.measured);
        let unmeasured = judged(lock, |f| {
            hold(f);
            f.floor = Err((String::new(), String::new()));
        });
        assert!(!unmeasured.measured.contains("measured"), "{}", unmeasured.measured);
        let nameless = judged(lock, |f| f.start.holder = Some(Holder { pid: None, said: "somebody".to_owned() }));
        assert_eq!(nameless.see.as_deref(), Some("fuser -v /srv/camus"));
        assert_eq!(judged(lock, |f| f.disk.place = Place::NotADirectory).verdict, Skip);
    }

    /// Lost if it fails: the same, by a port.
    #[test]
    fn a_port_that_is_taken_fails_with_one_that_is_free() {
        for check in [listeners, http] {
            assert_eq!(judged(check, |_| {}).verdict, Pass);
        }
        let taken = judged(listeners, |f| {
            f.start.listeners.push(Address {
                host: "::1".to_owned(),
                asked: "[::1]:9099".to_owned(),
                ..Address::default()
            });
            f.start.listeners[1].port = 9099;
            take(&mut f.start.listeners[1]);
        });
        let fix = "camus serve --listen 127.0.0.1:9092,[::1]:9100   (a port that is free now)";
        assert_eq!((taken.verdict, taken.fix.as_deref()), (Fail, Some(fix)));
        let taken = judged(http, |f| take(&mut f.start.http));
        assert!(taken.verdict == Fail && taken.fix.is_some_and(|fix| fix.starts_with("camus serve --http ")));
        let ours = judged(http, |f| {
            hold(f);
            take(&mut f.start.http);
        });
        assert_eq!(ours.verdict, Skip, "the running broker's own");
        let none_free = judged(http, |f| f.start.http.open = Open::Taken);
        assert_eq!((none_free.verdict, none_free.see.is_some()), (Fail, true));
        let low = judged(http, |f| (f.start.http.open, f.start.http.free_port) = (Open::NotAllowed, Some(1024)));
        assert!(low.verdict == Fail && low.measured.contains("1024"), "{}", low.measured);
        let elsewhere = judged(http, |f| f.start.http.open = Open::No("no such name".to_owned()));
        assert!(elsewhere.verdict == Fail && elsewhere.measured.ends_with("no such name") && elsewhere.see.is_some());
    }
}
