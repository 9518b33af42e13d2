//! Addresses as memcached's `-l` has them: names, interfaces, all of a host.

use super::plan::{self, wrong};
use crate::failure::Failure;
use rustix::net::{AddressFamily, SocketType};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs, UdpSocket};

/// Of several addresses of one name, those at which this machine can listen, and the others with why not; all, if it can at none:
/// whoever tries says so. A name may have an address of IPv6 where there is none.
pub(super) fn usable(
    addresses: Vec<SocketAddr>,
) -> (Vec<SocketAddr>, Vec<(IpAddr, std::io::Error)>) {
    if addresses.len() < 2 {
        return (addresses, Vec::new());
    }
    let mut unusable = Vec::new();
    let mut here = addresses.clone();
    here.retain(|address| {
        let mut any = *address;
        any.set_port(0);
        // Any kind of socket tells, and this one is in nobody's way.
        match UdpSocket::bind(any) {
            Err(error)
                if error.kind() == std::io::ErrorKind::AddrNotAvailable
                    || error.raw_os_error()
                        == Some(rustix::io::Errno::AFNOSUPPORT.raw_os_error()) =>
            {
                unusable.push((address.ip(), error));
                false
            }
            _ => true,
        }
    });
    if here.is_empty() { (addresses, Vec::new()) } else { (here, unusable) }
}

/// What an argument of `-l` names.
#[derive(Debug)]
pub(super) enum Named {
    /// These.
    Addresses(Vec<SocketAddr>),
    /// Those of a host, at this port.
    Host(String, u16),
}

/// Reads `HOST`, `HOST:PORT`, `[HOST]` or `[HOST]:PORT`, without looking a host up.
pub(super) fn read(text: &str, port: u16) -> Result<Named, Failure> {
    let numbered = with_interface_number(text).map_err(|error| failed(text, &error))?;
    let text = numbered.as_str();
    if let Ok(address) = text.parse::<SocketAddr>() {
        return Ok(Named::Addresses(vec![address]));
    }
    let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    if let Ok(address) = format!("[{bare}]:{port}").parse() {
        return Ok(Named::Addresses(vec![SocketAddr::V6(address)]));
    }
    if let Ok(ip) = bare.parse::<IpAddr>() {
        return Ok(Named::Addresses(vec![SocketAddr::new(ip, port)]));
    }
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) => (host, plan::port("-l", port)?),
        None => (text, port),
    };
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    if host == "*" {
        // What memcached has for all addresses of this host.
        let all = [IpAddr::V4(Ipv4Addr::UNSPECIFIED), IpAddr::V6(Ipv6Addr::UNSPECIFIED)];
        return Ok(Named::Addresses(all.map(|ip| SocketAddr::new(ip, port)).into()));
    }
    Ok(Named::Host(host.to_owned(), port))
}

/// Addresses of what `text` names.
pub(super) fn resolve(text: &str, port: u16) -> Result<Vec<SocketAddr>, Failure> {
    let (host, port) = match read(text, port)? {
        Named::Addresses(addresses) => return Ok(addresses),
        Named::Host(host, port) => (host, port),
    };
    let found = (host.as_str(), port).to_socket_addrs();
    let found: Vec<SocketAddr> = found.map_err(|error| failed(text, &error))?.collect();
    // As in memcached: every address that the name has.
    if found.is_empty() { Err(failed(text, &"no address")) } else { Ok(found) }
}

fn failed(text: &str, why: &dyn std::fmt::Display) -> Failure {
    wrong(format!("-l {text}: {why}"))
}

/// An address of one interface, as `fe80::1%eth0`, with the interface's number, which is all that addresses have.
fn with_interface_number(text: &str) -> Result<String, std::io::Error> {
    let Some((before, rest)) = text.split_once('%') else { return Ok(text.to_owned()) };
    let (name, after) = rest.split_at(rest.find(']').unwrap_or(rest.len()));
    if name.parse::<u32>().is_ok() {
        return Ok(text.to_owned());
    }
    if name.contains(':') {
        // The system would take it for a name of `eth0`, and leave out the port.
        let words = "an address of IPv6 with a port stands in brackets";
        return Err(std::io::Error::new(std::io::ErrorKind::InvalidInput, words));
    }
    let any = rustix::net::socket(AddressFamily::UNIX, SocketType::DGRAM, None)?;
    let number = rustix::net::netdevice::name_to_index(any, name)?;
    Ok(format!("{before}%{number}{after}"))
}
