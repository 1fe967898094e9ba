//! What the scheduler keeps apart between clients.

use super::*;

#[test]
fn a_client_neither_reads_nor_awaits_the_pages_of_another_client() {
    let mut scheduler = Scheduler::new(limits(4, 128, 100));
    let prompt: Vec<u32> = (0..40).collect();
    let [first, second] = [1, 2].map(|client| admit(&mut scheduler, arrival(client, prompt.clone(), 1)));
    assert_eq!(step(&mut scheduler).started, [(first, 0), (second, 0)]);
    // Each finds its own two full pages.
    for client in [1, 2] {
        let again = admit(&mut scheduler, arrival(client, prompt.clone(), 1));
        assert_eq!(step(&mut scheduler).started, [(again, 32)], "client {client}");
    }
    let third = admit(&mut scheduler, arrival(3, prompt, 1));
    assert_eq!(step(&mut scheduler).started, [(third, 0)]);
}
