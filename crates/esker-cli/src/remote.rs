//! Commands on the data of servers, over the native protocol: one server, or several as a cluster.
//!
//! Each server is named on the ring by its address as it was given, so that whoever gives the same
//! addresses, in whatever order, finds the same keys.

use crate::arguments::Servers;
use crate::failure::{Done, Failure};
use crate::service::read_file;
use esker_client::{Address, Cluster, ErrorKind, Member, Options, Tls};
use std::io::Write;

impl From<esker_client::Error> for Failure {
    fn from(error: esker_client::Error) -> Self {
        match error.kind() {
            ErrorKind::InvalidArgument | ErrorKind::Unsupported => {
                Failure::usage(error.to_string())
            }
            _ => Failure::broken(error.to_string()),
        }
    }
}

/// The cluster that `servers` name.
fn cluster(servers: &Servers) -> Result<Cluster, Failure> {
    let addresses: Result<Vec<Address>, esker_client::Error> =
        servers.urls.iter().map(|url| url.parse()).collect();
    let members = addresses?.into_iter().map(Member::from).collect();
    let credentials = match &servers.auth_file {
        None => None,
        Some(path) => {
            let text = String::from_utf8(read_file(path)?).unwrap_or_default();
            let known = text.lines().find_map(|line| line.split_once(':'));
            let (user, password) = known.ok_or_else(|| {
                Failure::usage(format!("{}: there is no line user:password", path.display()))
            })?;
            Some((user.to_owned(), password.to_owned()))
        }
    };
    let tls = match &servers.tls_ca {
        None => None,
        Some(path) => Some(Tls::from_pem(&read_file(path)?)?),
    };
    Ok(Cluster::new(members, &Options { credentials, tls, ..Options::default() })?)
}

/// `esker get --server`.
pub(crate) fn get(servers: &Servers, key: &[u8]) -> Result<Done, Failure> {
    let Some(value) = cluster(servers)?.get(key)? else { return Ok(Done::No) };
    let mut output = std::io::stdout().lock();
    let written = output.write_all(&value).and_then(|()| output.flush());
    written.map_err(|source| Failure::io("standard output", &source))?;
    Ok(Done::Yes)
}

/// `esker put --server`.
pub(crate) fn put(servers: &Servers, key: &[u8], value: &[u8]) -> Result<Done, Failure> {
    cluster(servers)?.put(key, value)?;
    Ok(Done::Yes)
}

/// `esker delete --server`.
pub(crate) fn delete(servers: &Servers, key: &[u8]) -> Result<Done, Failure> {
    let existed = cluster(servers)?.delete(key)?;
    Ok(if existed { Done::Yes } else { Done::No })
}

/// `esker stat --server`: what each server tells, under its address.
pub(crate) fn stat(servers: &Servers, json: bool) -> Result<Done, Failure> {
    let cluster = cluster(servers)?;
    let mut output = std::io::stdout().lock();
    let mut say = |line: String| {
        writeln!(output, "{line}").map_err(|source| Failure::io("standard output", &source))
    };
    for (member, client) in cluster.members() {
        let stats = client.stats()?;
        if json {
            let mut object = serde_json::Map::new();
            object.insert("server".into(), member.name.clone().into());
            for (name, value) in stats {
                let number = value.parse::<u64>().map(serde_json::Value::from);
                object.insert(name, number.unwrap_or_else(|_| value.into()));
            }
            say(serde_json::Value::Object(object).to_string())?;
        } else {
            let width = stats.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
            say(format!("{:width$} {}", "server", member.name))?;
            for (name, value) in stats {
                say(format!("{name:width$} {value}"))?;
            }
        }
    }
    Ok(Done::Yes)
}
