//! Commands on the data of servers, over the native protocol: one server, or several as a cluster.
//!
//! Each server is named on the ring by its address as it was given, so that whoever gives the same
//! addresses, in whatever order, finds the same keys.

use crate::arguments::Servers;
use crate::failure::{Done, Failure};
use crate::output::output_failed;
use crate::service::{read_file, say};
use esker_client::{Address, BackupReport, Cluster, ErrorKind, Member, Options, Status, Tls};
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
            let text = String::from_utf8(read_file(path)?).map_err(|_| {
                Failure::usage(format!(
                    "{}: what clients say is UTF-8, and this is not",
                    path.display()
                ))
            })?;
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
    written.map_err(output_failed)?;
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

/// `esker backup --server`: each server to the folder that it has for that. A server that fails keeps no other from its
/// backup.
pub(crate) fn backup(servers: &Servers) -> Result<Done, Failure> {
    let mut failed: Option<Failure> = None;
    for (member, told) in cluster(servers)?.backup() {
        let failure = match told {
            Ok(report) => {
                let BackupReport { segments_copied, bytes_copied, segments_reused, last_version } =
                    report;
                let report = esker::BackupReport {
                    segments_copied,
                    segments_reused,
                    bytes_copied,
                    last_version,
                };
                say(&format!("{}: {report}", member.name));
                continue;
            }
            Err(error) => not_backed_up(&member.name, error),
        };
        note(&mut failed, failure);
    }
    failed.map_or(Ok(Done::Yes), Err)
}

/// Of the failures of several servers the first one is said last, and is the command's; the others are said at once.
fn note(first: &mut Option<Failure>, failure: Failure) {
    match first {
        None => *first = Some(failure),
        Some(_) => say(&failure.to_string()),
    }
}

/// Why there is no backup of a server.
fn not_backed_up(server: &str, error: esker_client::Error) -> Failure {
    match error.status() {
        Some(Status::Forbidden) => Failure::usage(format!(
            "{server}: the server has no folder for backups; esker serve --backups DIR gives it one"
        )),
        Some(Status::UnknownOperation) => {
            Failure::usage(format!("{server}: the server is older than this command"))
        }
        Some(Status::TooLarge) => {
            Failure::broken(format!("{server}: another backup of the server is under way"))
        }
        Some(Status::Failed(ErrorKind::Cancelled)) => {
            Failure::broken(format!("{server}: the server stopped before its backup was whole"))
        }
        Some(Status::Failed(ErrorKind::Locked)) => Failure::broken(format!(
            "{server}: another process uses the server's folder for backups"
        )),
        Some(Status::Failed(ErrorKind::NoSpace)) => Failure::broken(format!(
            "{server}, whose log says more: no space left where its backups go, or for what was written meanwhile"
        )),
        // It has said to its client only of what kind the failure is.
        Some(Status::Failed(_)) => {
            Failure::from(error).at(&format!("{server}, whose log says more"))
        }
        _ => Failure::from(error).at(server),
    }
}

/// `esker stat --server`: what each server tells, under its address.
pub(crate) fn stat(servers: &Servers, json: bool) -> Result<Done, Failure> {
    let cluster = cluster(servers)?;
    let mut output = std::io::stdout().lock();
    let mut say = |line: String| writeln!(output, "{line}").map_err(output_failed);
    let mut failed: Option<Failure> = None;
    for (member, client) in cluster.members() {
        let stats = match client.stats() {
            Ok(stats) => stats,
            Err(error) => {
                // Who is there is told of all the same.
                note(&mut failed, Failure::from(error).at(&member.name));
                continue;
            }
        };
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
    failed.map_or(Ok(Done::Yes), Err)
}
