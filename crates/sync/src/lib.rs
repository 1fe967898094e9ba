//! Outer synchronisation without I/O, clock or devices: leases, rounds, merging.
