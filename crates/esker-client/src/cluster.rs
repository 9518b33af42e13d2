//! Several servers together: each key belongs to one of them.
//!
//! The servers know nothing of each other. Who belongs to a cluster is what its clients are told: all
//! of them have to be told the same. After a change of the members keys that have moved are not found
//! until somebody has stored them anew, or copied them; nothing is copied here.
//!
//! # Concurrency
//! As [`Client`]: cheap to clone, for any number of threads. What concerns several servers is submitted
//! to all of them before any is waited for: from a thread each where that may take long, as it does to connect.
//!
//! # Failure
//! A server that cannot be reached, or is silent, fails the keys that belong to it, and no others. However many of them there are,
//! a call takes no longer than with one: the time for connecting runs at the same time, and so does that for replies. (Values that
//! do not go into one reply of each server are asked for in rounds, and each round has its time.)

use crate::address::Address;
use crate::batch::Batch;
use crate::client::Client;
use crate::deadline::Deadline;
use crate::error::{Error, Result};
use crate::options::Options;
use crate::pending::{Pending, Wanted};
use crate::ring::Ring;
use crate::side_by_side::side_by_side;
use crate::value::{Outcome, Value};
use esker_base::ids::Version;
use esker_format::native::{Attributes, BackupReport, Changes, Condition};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// A server of a cluster.
#[derive(Clone, Debug)]
pub struct Member {
    /// What its points on the ring are made of. It stays when the server moves to another address.
    pub name: String,
    /// Where the server is.
    pub address: Address,
    /// Its share of the keys, beside the weights of the others.
    pub weight: u16,
}

impl From<Address> for Member {
    /// A member of weight 1 that is named as its address.
    fn from(address: Address) -> Member {
        Member { name: address.to_string(), address, weight: 1 }
    }
}

#[derive(Debug)]
struct Inner {
    members: Vec<(Member, Client)>,
    ring: Ring,
    request_timeout: Duration,
}

/// Keys of a `multi_get` that belong to one server.
struct Part {
    /// Where they stand among all.
    places: Vec<usize>,
    wanted: Wanted,
    failed: Option<Error>,
}

/// Clients of several servers, by key. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Cluster(Arc<Inner>);

impl Cluster {
    /// The cluster of `members`. The first call that needs a server connects to it.
    ///
    /// # Errors
    /// `InvalidArgument` if no member takes keys, or two have one name.
    pub fn new(members: Vec<Member>, options: &Options) -> Result<Cluster> {
        let mut names: Vec<&str> = members.iter().map(|member| member.name.as_str()).collect();
        names.sort_unstable();
        if names.windows(2).any(|pair| matches!(pair, [one, other] if one == other)) {
            return Err(Error::invalid("two servers of a cluster have one name"));
        }
        let named: Vec<(&str, u16)> =
            members.iter().map(|member| (member.name.as_str(), member.weight)).collect();
        let ring = Ring::new(&named);
        if ring.owner(b"").is_none() {
            return Err(Error::invalid("no server of the cluster takes keys"));
        }
        let members = members
            .into_iter()
            .map(|member| {
                let client = Client::new(member.address.clone(), options.clone());
                (member, client)
            })
            .collect();
        let request_timeout = options.request_timeout;
        Ok(Cluster(Arc::new(Inner { members, ring, request_timeout })))
    }

    /// The members with their clients.
    pub fn members(&self) -> impl Iterator<Item = (&Member, &Client)> {
        self.0.members.iter().map(|(member, client)| (member, client))
    }

    /// The member that `key` belongs to, and its client.
    ///
    /// # Errors
    /// None while the cluster has members that take keys, which it always has.
    pub fn owner(&self, key: &[u8]) -> Result<(&Member, &Client)> {
        let index = self.0.ring.owner(key);
        let found = index.and_then(|index| self.0.members.get(index));
        let (member, client) = found.ok_or_else(|| Error::invalid("no server takes keys"))?;
        Ok((member, client))
    }

    fn client(&self, key: &[u8]) -> Result<&Client> {
        self.owner(key).map(|(_, client)| client)
    }

    /// As [`Client::get`].
    ///
    /// # Errors
    /// As [`Client::get`].
    pub fn get(&self, key: &[u8]) -> Result<Option<Value>> {
        self.client(key)?.get(key)
    }

    /// As [`Client::put`].
    ///
    /// # Errors
    /// As [`Client::put`].
    pub fn put(&self, key: &[u8], value: &[u8]) -> Result<Version> {
        self.client(key)?.put(key, value)
    }

    /// As [`Client::put_with`].
    ///
    /// # Errors
    /// As [`Client::put`].
    pub fn put_with(
        &self,
        key: &[u8],
        value: &[u8],
        attributes: Attributes,
        condition: Condition,
    ) -> Result<Outcome> {
        self.client(key)?.put_with(key, value, attributes, condition)
    }

    /// As [`Client::delete`].
    ///
    /// # Errors
    /// As [`Client::put`].
    pub fn delete(&self, key: &[u8]) -> Result<bool> {
        self.client(key)?.delete(key)
    }

    /// As [`Client::compare_and_delete`].
    ///
    /// # Errors
    /// As [`Client::put`].
    pub fn compare_and_delete(&self, key: &[u8], expected: Version) -> Result<bool> {
        self.client(key)?.compare_and_delete(key, expected)
    }

    /// The values of several keys, in their order, or why there is none to be had: an error as of [`Client::get`] is that of all
    /// keys of one server, and of no others. The servers are asked at the same time.
    #[must_use = "a failure of one server is told with its keys"]
    pub fn multi_get(&self, keys: &[&[u8]]) -> Vec<Result<Option<Value>>> {
        let mut places: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for (place, key) in keys.iter().enumerate() {
            let owner = self.0.ring.owner(key).unwrap_or(0);
            places.entry(owner).or_default().push(place);
        }
        let part = |(owner, places): (usize, Vec<usize>)| {
            let (_, client) = self.0.members.get(owner)?;
            let some = places.iter().filter_map(|place| Some(keys.get(*place)?.to_vec()));
            let wanted = Wanted::new(client.clone(), some.collect());
            Some(Part { places, wanted, failed: None })
        };
        let mut parts: Vec<Part> = places.into_iter().filter_map(part).collect();
        loop {
            // Those of which not all came with the first reply are asked again together.
            let mut left: Vec<&mut Part> = parts
                .iter_mut()
                .filter(|part| part.failed.is_none() && !part.wanted.is_answered())
                .collect();
            if left.is_empty() {
                break;
            }
            let asked = side_by_side(
                &left,
                |part| part.wanted.asks_slowly(),
                |part| part.wanted.ask().inspect(Pending::send),
            );
            let by = Deadline::after(self.0.request_timeout);
            for (part, pending) in left.iter_mut().zip(asked) {
                let some = pending.and_then(|pending| pending.wait_until(by));
                part.failed = some.and_then(|some| part.wanted.take(some)).err();
            }
        }
        let mut values: Vec<Result<Option<Value>>> = keys.iter().map(|_| Ok(None)).collect();
        for Part { places, wanted, failed } in parts {
            let mut told = wanted.values.into_iter();
            for place in places {
                if let Some(slot) = values.get_mut(place) {
                    *slot = match &failed {
                        // There is one for each key.
                        None => Ok(told.next().flatten()),
                        Some(error) => Err(error.clone()),
                    };
                }
            }
        }
        values
    }

    /// As [`Client::write`], for a batch whose keys all belong to one server: no batch is atomic over
    /// several. [`Cluster::split`] makes such batches.
    ///
    /// # Errors
    /// As [`Client::write`]; `InvalidArgument` for keys of several servers.
    pub fn write(&self, batch: &Batch) -> Result<Version> {
        batch.check()?;
        let changes = Changes::decode(&batch.payload).map_err(Error::unsayable)?;
        let mut owners = changes.iter().map(|change| self.0.ring.owner(change.key));
        let owner = owners.next().flatten();
        if owners.any(|other| other != owner) {
            let words =
                "the keys of the batch belong to several servers; no batch is atomic over them";
            return Err(Error::invalid(words));
        }
        let found = owner.and_then(|owner| self.0.members.get(owner));
        let (_, client) = found.ok_or_else(|| Error::invalid("no server takes keys"))?;
        client.write(batch)
    }

    /// The changes of `batch` as one batch for each server that is concerned. Each is atomic by itself;
    /// together they are not.
    ///
    /// # Errors
    /// As [`Client::write`] before anything is sent.
    pub fn split(&self, batch: &Batch) -> Result<Vec<(Client, Batch)>> {
        batch.check()?;
        let changes = Changes::decode(&batch.payload).map_err(Error::unsayable)?;
        let mut parts: BTreeMap<usize, Batch> = BTreeMap::new();
        for change in changes.iter() {
            let owner = self.0.ring.owner(change.key).unwrap_or(0);
            parts.entry(owner).or_default().push(&change);
        }
        let client = |owner: usize| self.0.members.get(owner).map(|(_, client)| client.clone());
        Ok(parts.into_iter().filter_map(|(owner, part)| Some((client(owner)?, part))).collect())
    }

    /// As [`Client::backup`], on all servers at the same time, each to a folder of its own: what comes of each, in the order of
    /// the members. They are not copied at one moment.
    #[must_use = "a failure of one server is told with its name"]
    pub fn backup(&self) -> Vec<(&Member, Result<BackupReport>)> {
        let members: Vec<(&Member, &Client)> = self.members().collect();
        // Each takes as long as it takes.
        let done = side_by_side(&members, |_| true, |(_, client)| client.backup());
        members.into_iter().map(|(member, _)| member).zip(done).collect()
    }

    /// As [`Client::sync`], on all servers at the same time.
    ///
    /// # Errors
    /// As [`Client::sync`]; all servers have been asked, and the first error is told.
    pub fn sync(&self) -> Result<()> {
        let clients: Vec<&Client> = self.members().map(|(_, client)| client).collect();
        let asked = side_by_side(
            &clients,
            |client| !client.submits_at_once(),
            |client| client.submit_sync().inspect(Pending::send),
        );
        let by = Deadline::after(self.0.request_timeout);
        let ended: Vec<Result<()>> = asked
            .into_iter()
            .map(|pending| pending.and_then(|pending| pending.wait_until(by)))
            .collect();
        ended.into_iter().collect()
    }
}
