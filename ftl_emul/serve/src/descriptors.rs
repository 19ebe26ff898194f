//! Limits of the descriptors of this process by owner, so that no client takes those that others need.
//!
//! Each front end of each namespace, the hosts of NVMe/TCP and the control socket have reserved descriptors. NBD and
//! vhost-user clients may borrow more while there are some, as long as their front end of a namespace has then borrowed
//! no more than is left for the others. A client without a descriptor is refused at once.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::error::{ServeError, refuse};
use crate::parameters::Parameters;
use crate::threads::lock;

/// For the server itself: files that are written, recordings, clients that are about to be rejected.
const SERVERS_OWN: usize = 64;
/// Clients of the control socket.
pub const CONTROL_CLIENTS: usize = 32;
/// Connections of NVMe hosts.
pub const NVME_CONNECTIONS: usize = 64;
/// Connections to an NBD socket that are always possible.
const NBD_CONNECTIONS: usize = 4;
/// Descriptors of a TLS connection in addition to the client's.
const TLS_PAIR: usize = 2;
/// A vhost-user client: its socket twice, one for messages, its requests in flight, and the most that comes with one
/// message before any of it is refused.
pub const VHOST_USER_CLIENT: usize = 4 + 32;
/// Descriptors of one of its queues: two for kicks, a call, and two with which its thread waits.
pub const VHOST_USER_QUEUE: usize = 5;
/// With four pieces of memory and two queues a VM can always use its disk.
const VHOST_USER_OWN: usize = VHOST_USER_CLIENT + 4 + 2 * VHOST_USER_QUEUE;

/// An owner with a reserve of descriptors.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Owner {
    /// Clients of the control socket.
    Control,
    /// NVMe hosts.
    NvmeTcp,
    /// Clients of the NBD socket of a namespace, or of the common socket.
    Nbd(Option<String>),
    /// The client of a namespace over vhost-user.
    VhostUser(String),
}

/// Descriptors of an owner's clients.
#[derive(Debug)]
struct Account {
    taken: usize,
    /// Distinguishes it from those of earlier owners of that name.
    number: u64,
}

#[derive(Debug, Default)]
struct State {
    accounts: HashMap<Owner, Account>,
    /// Number of the next account.
    next_number: u64,
    /// Descriptors of clients whose owner was removed.
    left_over: usize,
}

/// See the module.
#[derive(Debug)]
pub struct Budget {
    limit: usize,
    has_tls: bool,
    state: Mutex<State>,
}

/// Descriptors of a client, released when this is dropped.
#[derive(Debug)]
pub struct Taken {
    budget: Arc<Budget>,
    owner: Owner,
    /// Number of the owner's account.
    account: u64,
    count: usize,
}

/// Whom the parameters have clients of.
pub fn owners_of(parameters: &Parameters) -> Vec<Owner> {
    let mut owners: Vec<_> = parameters.nbd_fds.iter().map(|(_, only)| Owner::Nbd(only.clone())).collect();
    owners.extend(parameters.vhost_user_fds.iter().map(|(_, name)| Owner::VhostUser(name.clone())));
    owners.extend(parameters.nvme_tcp_fd.map(|_| Owner::NvmeTcp));
    owners.extend(parameters.control_fd.map(|_| Owner::Control));
    owners
}

impl Budget {
    /// Limit of this process.
    pub fn of_process(has_tls: bool) -> Arc<Self> {
        let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
        // If the system refuses, the limit stays unchanged.
        let _refused = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
        let limit = getrlimit(Resource::Nofile).current.and_then(|limit| usize::try_from(limit).ok());
        Self::new(limit.unwrap_or(usize::MAX / 2), has_tls)
    }

    fn new(limit: usize, has_tls: bool) -> Arc<Self> {
        Arc::new(Self { limit, has_tls, state: Mutex::default() })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Number of descriptors of an NBD connection.
    pub fn nbd_connection(&self) -> usize {
        if self.has_tls { 1 + TLS_PAIR } else { 1 }
    }

    /// Descriptors that are reserved for an owner's clients.
    fn reserve(&self, owner: &Owner) -> usize {
        match owner {
            Owner::Control => CONTROL_CLIENTS,
            Owner::NvmeTcp => NVME_CONNECTIONS,
            Owner::Nbd(_) => NBD_CONNECTIONS * self.nbd_connection(),
            Owner::VhostUser(_) => VHOST_USER_OWN,
        }
    }

    /// Descriptors of an owner without any client.
    fn fixed(owner: &Owner) -> usize {
        match owner {
            // Its socket, and the data of the namespace; the socket for NVMe hosts, and that for discovery.
            Owner::Nbd(_) | Owner::Control | Owner::NvmeTcp => 2,
            // Its socket, and a client that waits for the previous one to end.
            Owner::VhostUser(_) => 3,
        }
    }

    /// Descriptors that are reserved so that each owner can have its reserve.
    fn committed(&self, state: &State) -> usize {
        let of = |(owner, account): (&Owner, &Account)| Self::fixed(owner) + account.taken.max(self.reserve(owner));
        SERVERS_OWN + state.left_over + state.accounts.iter().map(of).sum::<usize>()
    }

    /// Reserves descriptors for more owners. Err if there are too few.
    pub fn add(&self, owners: impl IntoIterator<Item = Owner>) -> Result<(), ServeError> {
        let mut state = self.state();
        let new: Vec<_> = owners.into_iter().filter(|owner| !state.accounts.contains_key(owner)).collect();
        let of = |owner: &Owner| Self::fixed(owner) + self.reserve(owner);
        let least = SERVERS_OWN + state.accounts.keys().chain(&new).map(of).sum::<usize>();
        if least > self.limit {
            return refuse(format!(
                "{} sockets need {least} descriptors at least, lest clients of one namespace take those of another, and \
                 this process may have {}: raise the limit (`ulimit -n {}`, or LimitNOFILE= of the unit)",
                state.accounts.len() + new.len(),
                self.limit,
                (2 * least).next_power_of_two(),
            ));
        }
        for owner in new {
            let number = state.next_number;
            state.next_number += 1;
            state.accounts.insert(owner, Account { taken: 0, number });
        }
        Ok(())
    }

    /// Removes an owner, of which there may still be clients.
    pub fn remove(&self, owner: &Owner) {
        let mut state = self.state();
        state.left_over += state.accounts.remove(owner).map_or(0, |account| account.taken);
    }

    /// Descriptors for a client. None if others need them, or `owner` does not exist.
    pub fn take(self: &Arc<Self>, owner: &Owner, count: usize) -> Option<Taken> {
        let account = self.state().accounts.get(owner)?.number;
        let mut taken = Taken { budget: Arc::clone(self), owner: owner.clone(), account, count: 0 };
        taken.resize(count).then_some(taken)
    }

    /// Whether an owner that has `before` may have `after`.
    fn allows(&self, state: &State, owner: &Owner, before: usize, after: usize) -> bool {
        let reserve = self.reserve(owner);
        if after <= before.max(reserve) {
            return true;
        }
        let left = self.limit.checked_sub(self.committed(state) + after - before.max(reserve));
        match owner {
            Owner::Control | Owner::NvmeTcp => false,
            Owner::Nbd(_) | Owner::VhostUser(_) => left.is_some_and(|left| after - reserve <= left),
        }
    }
}

impl Taken {
    /// Changes the number. False, without a change, if others need them.
    #[must_use]
    pub fn resize(&mut self, count: usize) -> bool {
        let mut state = self.budget.state();
        let Some(before) = self.account(&mut state).map(|account| account.taken) else {
            // The namespace was deleted, so the client will be disconnected.
            return count <= self.count;
        };
        let after = before - self.count + count;
        let allowed = self.budget.allows(&state, &self.owner, before, after);
        if let Some(account) = self.account(&mut state).filter(|_| allowed) {
            account.taken = after;
            drop(state);
            self.count = count;
        }
        allowed
    }

    /// None if its owner was removed, even if there is another one of that name.
    fn account<'s>(&self, state: &'s mut State) -> Option<&'s mut Account> {
        state.accounts.get_mut(&self.owner).filter(|account| account.number == self.account)
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        let mut state = self.budget.state();
        match self.account(&mut state) {
            Some(account) => account.taken -= self.count,
            None => state.left_over -= self.count,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nbd(name: &str) -> Owner {
        Owner::Nbd(Some(name.into()))
    }

    /// A control socket and three namespaces.
    fn budget(limit: usize) -> Arc<Budget> {
        let budget = Budget::new(limit, false);
        budget.add(["a", "b", "c"].map(nbd).into_iter().chain([Owner::Control])).unwrap();
        budget
    }

    const LEAST: usize = SERVERS_OWN + 2 + CONTROL_CLIENTS + 3 * (2 + NBD_CONNECTIONS);

    #[test]
    fn flood_leaves_every_other_owner_its_own() {
        let budget = budget(LEAST + 10);
        let mut crowd = Vec::new();
        while let Some(taken) = budget.take(&nbd("a"), 1) {
            crowd.push(taken);
        }
        assert_eq!(crowd.len(), NBD_CONNECTIONS + 5, "its own, and half of what is left");
        let others: Vec<_> = (0..NBD_CONNECTIONS).map(|_| budget.take(&nbd("b"), 1)).collect();
        assert!(others.iter().all(Option::is_some));
        let control: Vec<_> = (0..=CONTROL_CLIENTS).map(|_| budget.take(&Owner::Control, 1)).collect();
        assert_eq!(control.iter().flatten().count(), CONTROL_CLIENTS);
        drop(crowd);
        assert!(budget.take(&nbd("a"), NBD_CONNECTIONS + 5).is_some());
    }

    #[test]
    fn too_few_for_a_reserve_of_each_are_refused_with_the_fix() {
        let budget = budget(LEAST + 5);
        let refused = budget.add([nbd("d")]).unwrap_err().to_string();
        assert!(refused.contains("LimitNOFILE") && refused.contains(&format!("{}", LEAST + 6)), "{refused}");
        budget.remove(&nbd("c"));
        budget.add([nbd("d")]).unwrap();
    }

    #[test]
    fn client_of_a_namespace_that_is_gone_counts_until_it_ends() {
        let budget = budget(LEAST + 3);
        let client = budget.take(&nbd("c"), 3).unwrap();
        budget.remove(&nbd("c"));
        assert!(budget.take(&nbd("c"), 1).is_none());
        assert_eq!(budget.state().left_over, 3);
        // There is another one of that name by then.
        budget.add([nbd("c")]).unwrap();
        let mut another = budget.take(&nbd("c"), 4).unwrap();
        drop(client);
        let after = |state: &State| (state.left_over, state.accounts[&nbd("c")].taken);
        assert_eq!(after(&budget.state()), (0, 4));
        assert!(another.resize(1));
    }

    #[test]
    fn client_grows_as_far_as_others_have_their_own() {
        let budget = Budget::new(SERVERS_OWN + 2 * (3 + VHOST_USER_OWN) + 4, false);
        let (a, b) = (Owner::VhostUser("a".into()), Owner::VhostUser("b".into()));
        budget.add([a.clone(), b.clone()]).unwrap();
        let mut client = budget.take(&a, VHOST_USER_CLIENT).unwrap();
        assert!(client.resize(VHOST_USER_OWN + 2));
        assert!(!client.resize(VHOST_USER_OWN + 3));
        assert!(client.resize(VHOST_USER_CLIENT));
        assert!(budget.take(&b, VHOST_USER_OWN).is_some());
    }
}
