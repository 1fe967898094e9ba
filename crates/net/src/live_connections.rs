//! The live connections of a server, and the place of a newcomer when all places are taken.
//!
//! A token has at most [`Limits::max_peers_per_token`] places, and all tokens together have [`Limits::max_peers`]. Several
//! tokens together could hold all of them, and one address could hold all places of a token that it has copied. So a
//! newcomer that finds no free place gets that of another:
//!
//! 1. of the token with the most places, if its own token has far fewer and is below its limit,
//! 2. otherwise, among the places of its own token, that of the address with the most, if its own address has far fewer.
//!
//! [`far_fewer`] says what that is. In a token that gives way, the address with the most gives way, with its newest
//! connection. The older ones keep their leases, and a peer that comes again and again ends the same connection each time.
//! Between two tokens no address counts: many honest workers may stand behind one.

use std::collections::BTreeMap;
use std::net::IpAddr;

use crate::Limits;
use crate::fair_places::{FairPlaces, far_fewer};

/// The live connections by token, and by address within a token.
#[derive(Debug)]
pub(crate) struct LiveConnections<T> {
    by_token: BTreeMap<String, FairPlaces<IpAddr, T>>,
    taken: usize,
    /// Number of the next connection.
    next: u64,
}

/// The place of a live connection. The address is that at its admission.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    token: String,
    network: IpAddr,
    number: u64,
}

impl<T> Default for LiveConnections<T> {
    fn default() -> Self {
        Self { by_token: BTreeMap::new(), taken: 0, next: 0 }
    }
}

impl<T> LiveConnections<T> {
    pub(crate) fn len(&self) -> usize {
        self.taken
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.by_token.values().flat_map(FairPlaces::occupants)
    }

    /// Makes room for a connection. Returns the connection that gives way, if one must. `Err` if there is no place.
    pub(crate) fn make_room(
        &mut self,
        token: &str,
        network: IpAddr,
        limits: &Limits,
    ) -> Result<Option<T>, NoPlace> {
        let own = self.of(token);
        if own < limits.max_peers_per_token {
            if self.taken < limits.max_peers {
                return Ok(None);
            }
            let largest = self.by_token.iter().max_by_key(|(_, places)| places.taken());
            if let Some((largest, places)) = largest
                && far_fewer(own, places.taken())
            {
                let largest = largest.clone();
                return self.end_newest(&largest).map(Some).ok_or(NoPlace);
            }
        }
        let places = self.by_token.get(token).ok_or(NoPlace)?;
        let most = places.largest().map_or(0, |largest| places.of(&largest));
        if far_fewer(places.of(&network), most) {
            return self.end_newest(token).map(Some).ok_or(NoPlace);
        }
        Err(NoPlace)
    }

    pub(crate) fn take(&mut self, token: String, network: IpAddr, connection: T) -> Place {
        let number = self.next;
        self.next += 1;
        self.by_token.entry(token.clone()).or_default().take(network, number, connection);
        self.taken += 1;
        Place { token, network, number }
    }

    /// Frees a place, unless its connection gave way.
    pub(crate) fn leave(&mut self, place: &Place) -> Option<T> {
        self.remove(&place.token, |places| places.leave(&place.network, place.number))
    }

    fn of(&self, token: &str) -> usize {
        self.by_token.get(token).map_or(0, FairPlaces::taken)
    }

    /// Ends the newest connection of the token's address that has the most.
    fn end_newest(&mut self, token: &str) -> Option<T> {
        self.remove(token, FairPlaces::end_newest_of_largest)
    }

    fn remove(
        &mut self,
        token: &str,
        remove: impl FnOnce(&mut FairPlaces<IpAddr, T>) -> Option<T>,
    ) -> Option<T> {
        let places = self.by_token.get_mut(token)?;
        let removed = remove(places)?;
        if places.taken() == 0 {
            self.by_token.remove(token);
        }
        self.taken -= 1;
        Some(removed)
    }
}

/// There is no place for a newcomer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NoPlace;

/// The part of an address that a provider gives to one customer: an IPv4 address, or the first 64 bits of IPv6.
pub(crate) fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6((address.to_bits() >> 64 << 64).into()),
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server whose connections are their numbers in order.
    #[derive(Default)]
    struct Server {
        live: LiveConnections<u64>,
        places: Vec<Place>,
    }

    impl Server {
        /// The connection that gives way to a newcomer.
        fn connect(&mut self, token: &str, last: u8) -> Result<Option<u64>, NoPlace> {
            let limits = Limits { max_peers: 9, max_peers_per_token: 8, ..Limits::default() };
            let address = IpAddr::from([10, 0, 0, last]);
            let ended = self.live.make_room(token, address, &limits)?;
            self.places.push(self.live.take(token.to_owned(), address, self.places.len() as u64));
            assert!(self.live.len() <= 9);
            Ok(ended)
        }
    }

    #[test]
    fn two_tokens_with_all_places_leave_some_to_a_third() {
        let mut server = Server::default();
        for _ in 0..8 {
            assert_eq!(server.connect("a", 1), Ok(None));
        }
        assert_eq!((server.connect("a", 1), server.connect("b", 1)), (Err(NoPlace), Ok(None)));
        // The newest of the largest token first; with 5 and 3 places nobody has far fewer.
        let given: Vec<_> = (0..4).map(|_| server.connect("c", 2)).collect();
        assert_eq!(given, [Ok(Some(7)), Ok(Some(6)), Ok(Some(5)), Err(NoPlace)]);
        // Nobody comes back for the place that it gave away.
        assert_eq!(server.connect("a", 1), Err(NoPlace));
        assert_eq!(server.connect("b", 1), Ok(Some(4)));
    }

    #[test]
    fn an_address_with_all_places_of_a_token_leaves_some_to_another_address() {
        let mut server = Server::default();
        for _ in 0..8 {
            assert_eq!(server.connect("a", 1), Ok(None));
        }
        let given: Vec<_> = (0..4).map(|_| server.connect("a", 2)).collect();
        assert_eq!(given, [Ok(Some(7)), Ok(Some(6)), Ok(Some(5)), Err(NoPlace)]);
        assert_eq!(server.connect("a", 1), Err(NoPlace));
        // Other tokens lose nothing by this, and the token gets no further place.
        assert_eq!((server.connect("b", 1), server.live.len()), (Ok(None), 9));
    }

    #[test]
    fn a_place_is_free_once_its_connection_has_left() {
        let mut server = Server::default();
        for _ in 0..8 {
            assert_eq!(server.connect("a", 1), Ok(None));
        }
        assert_eq!(server.connect("b", 1), Ok(None));
        assert_eq!(server.connect("c", 1), Ok(Some(7)));
        let gave_way = server.places[7].clone();
        assert_eq!((server.live.leave(&gave_way), server.live.len()), (None, 9));
        let left = server.places[0].clone();
        assert_eq!((server.live.leave(&left), server.live.len()), (Some(0), 8));
        assert_eq!(server.connect("a", 1), Ok(None));
    }

    #[test]
    fn the_addresses_of_a_customer_are_one_network() {
        let one = network("2001:db8::1".parse().unwrap());
        assert_eq!(one, network("2001:db8::ffff:1".parse().unwrap()));
        assert_ne!(one, network("2001:db8:0:1::1".parse().unwrap()));
        assert_eq!(network("::ffff:10.0.0.1".parse().unwrap()), IpAddr::from([10, 0, 0, 1]));
    }
}
