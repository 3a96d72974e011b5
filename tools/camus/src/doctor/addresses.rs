//! Tries the addresses that a broker would listen on, and leaves them as they were.

use super::facts::{Address, Open};
use crate::serve;
use crate::settings::Listener;
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use std::io::{self, ErrorKind};
use std::net::SocketAddr;

/// How many ports are tried for one that is free.
const TRIED_MAX: u16 = 50;
/// Ports from here on need no right.
const UNPRIVILEGED_MIN: u16 = 1024;

/// Binds without listening: no client can come to it meanwhile, and a broker that starts at the same time is not
/// refused.
fn bind(addr: SocketAddr) -> io::Result<()> {
    let socket = Socket::new(Domain::for_address(addr), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.bind(&SockAddr::from(addr))
}

/// `setting`: whose address it is.
pub fn tried(setting: &str, listener: &Listener) -> Address {
    let asked = Address {
        host: listener.host.clone(),
        asked: listener.to_string(),
        port: listener.port,
        open: Open::Yes,
        free_port: None,
    };
    let addr = match serve::resolve(setting, listener) {
        Ok(addr) => addr,
        Err(error) => return Address { open: Open::No(error.meaning), ..asked },
    };
    let open = match bind(addr) {
        Ok(()) => return asked,
        Err(error) if error.kind() == ErrorKind::AddrInUse => Open::Taken,
        Err(error) if error.kind() == ErrorKind::PermissionDenied => Open::NotAllowed,
        Err(error) => return Address { open: Open::No(error.to_string()), ..asked },
    };
    let from = listener.port.saturating_add(1).max(UNPRIVILEGED_MIN);
    let free_port = (from..from.saturating_add(TRIED_MAX)).find(|port| bind(SocketAddr::new(addr.ip(), *port)).is_ok());
    Address { open, free_port, ..asked }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    /// Lost if it fails: a port that is taken is found out by the start, or one that is free stays taken.
    #[test]
    fn an_address_is_tried_and_left_as_it_was() {
        let taken = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let listener = Listener { host: "127.0.0.1".to_owned(), port: taken.local_addr().expect("bound").port() };
        let found = tried("listeners", &listener);
        assert_eq!((found.open, found.asked), (Open::Taken, listener.to_string()));
        assert!(found.free_port != Some(listener.port), "that one is not free");
        let any = Listener { host: "127.0.0.1".to_owned(), port: 0 };
        assert_eq!(tried("listeners", &any).open, Open::Yes);
        let elsewhere = Listener { host: "192.0.2.1".to_owned(), port: 9092 };
        assert!(matches!(tried("listeners", &elsewhere).open, Open::No(_)), "an address of nobody");
    }
}
