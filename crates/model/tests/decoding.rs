//! Decoding with a cache, token by token and in pieces.

#![allow(clippy::unwrap_used, reason = "the helpers of tests panic too")]

mod support;

use dipaco_model::*;
use support::*;

#[test]
fn decoding_in_any_pieces_scores_as_the_training_pass() {
    for config in [config(false), grouped()] {
        decode_in_pieces(&config);
    }
}

fn decode_in_pieces(config: &ModelConfig) {
    let path = compose(config, &two_levels(), &weights(config), false);
    let (tokens, targets) = (tokens(), targets());
    let scores = path.token_log_probs(&batch()).unwrap();
    let mean = -scores.iter().sum::<f32>() / 20.0;
    assert!((mean - path.loss(&batch()).unwrap().mean).abs() < 1e-6);
    for pieces in [vec![12], vec![1; 12], vec![5, 1, 6], vec![11, 1]] {
        let (mut cache, mut logits, mut rest) = (path.new_cache(), Vec::new(), &tokens[..TIME]);
        for piece in pieces {
            logits.extend(path.decode(&rest[..piece], &mut cache, true).unwrap());
            rest = &rest[piece..];
        }
        assert_eq!(cache.len(), TIME);
        for ((row, &target), score) in logits.chunks(64).zip(&targets).zip(&scores) {
            let sum: f64 = row.iter().map(|&logit| f64::from(logit).exp()).sum();
            assert!((f64::from(row[target as usize]) - sum.ln() - f64::from(*score)).abs() < 1e-5);
        }
        let mut again = path.new_cache();
        path.decode(&tokens[..TIME - 1], &mut again, false).unwrap();
        let last = path.decode(&tokens[TIME - 1..TIME], &mut again, false).unwrap();
        let pairs = last.iter().zip(&logits[(TIME - 1) * 64..]);
        assert!(pairs.into_iter().all(|(a, b)| (a - b).abs() < 1e-5));
    }
}

#[test]
fn a_cache_that_is_full_or_refused_stays_usable() {
    let config = config(false);
    let path = compose(&config, &dense(), &weights(&config), false);
    let mut cache = path.new_cache();
    assert_eq!(cache.bytes(), 0, "an empty cache takes no memory");
    path.decode(&[1; 30], &mut cache, false).unwrap();
    let error = path.decode(&[1; 3], &mut cache, false).unwrap_err();
    assert!(matches!(error, ModelError::Context { positions: 33, context: 32 }));
    assert!(matches!(
        path.decode(&[64], &mut cache, false),
        Err(ModelError::Token { token: 64, vocabulary: 64 })
    ));
    assert!(path.decode(&[], &mut cache, false).is_err());
    assert_eq!(cache.len(), 30);
    let first = path.decode(&[2, 3], &mut cache, false).unwrap();
    cache.truncate(30);
    assert_eq!(first, path.decode(&[2, 3], &mut cache, false).unwrap());
}

#[test]
fn a_cache_grows_with_its_sequence_and_keeps_every_position() {
    let config = ModelConfig { context: 1000, ..grouped() };
    let path = compose(&config, &dense(), &weights(&config), false);
    let position = 2 * 2 * 2 * 16 * 4;
    let tokens: Vec<u32> = (0..1000).map(|i| i * i % 64).collect();
    let (mut cache, mut logits, mut rooms) = (path.new_cache(), Vec::new(), Vec::new());
    for piece in tokens.chunks(50) {
        logits = path.decode(piece, &mut cache, false).unwrap();
        rooms.push(cache.bytes() / position);
    }
    rooms.dedup();
    assert_eq!(rooms, [64, 128, 256, 512, 1000]);
    // A cache with room for everything at once has never moved a position.
    assert_eq!(path.decode(&tokens[950..], &mut whole(&path, &tokens[..950]), false).unwrap(), logits);
}

/// A cache of these tokens, decoded in pieces of 50, that had its memory from the start.
fn whole(path: &Path, tokens: &[u32]) -> KvCache {
    let mut cache = path.new_cache();
    path.decode(&vec![0; 1000], &mut cache, false).unwrap();
    cache.truncate(0);
    tokens.chunks(50).for_each(|piece| drop(path.decode(piece, &mut cache, false).unwrap()));
    cache
}

#[test]
fn threads_share_a_path() {
    let config = config(false);
    let path = compose(&config, &dense(), &weights(&config), false);
    let decode = |token: u32| path.decode(&[token, 2, 3], &mut path.new_cache(), false).unwrap();
    let alone: Vec<_> = (0..8).map(decode).collect();
    let together: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8).map(|token| scope.spawn(move || decode(token))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(alone, together);
}

#[test]
fn outputs_at_positions_are_those_of_decoding_and_do_not_depend_on_later_tokens() {
    let config = config(true).with_outputs(5);
    let path = compose(&config, &dense(), &weights(&config), false);
    assert_eq!(path_specs(&config).last().unwrap().shape, [5, 32]);
    let mut tokens = tokens();
    let found = path.position_logits(&rows(&tokens, BATCH), &[4, 7]).unwrap();
    assert_eq!(found.len(), BATCH * 2 * 5);
    for (row, found) in tokens.chunks_exact(TIME).zip(found.chunks_exact(10)) {
        let all = path.decode(row, &mut path.new_cache(), true).unwrap();
        for (at, found) in [4, 7].into_iter().zip(found.chunks_exact(5)) {
            let expected = &all[at * 5..][..5];
            assert!(found.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-4), "{found:?} {expected:?}");
        }
    }
    tokens[8..TIME].fill(1);
    tokens[TIME + 8..].fill(2);
    let tokens = rows(&tokens, BATCH);
    assert_eq!(path.position_logits(&tokens, &[4, 7]).unwrap(), found);
    assert!(path.position_logits(&tokens, &[TIME]).is_err());
    let gradients = compose(&config, &dense(), &weights(&config), true);
    let batch = batch_of(tokens.ids(), &[4; BATCH * TIME], BATCH, 64, 5);
    let (loss, _) = gradients.gradients(&batch, BATCH).unwrap();
    assert_eq!(loss.mean, path.loss(&batch).unwrap().mean);
    let six = batch_of(tokens.ids(), &[4; BATCH * TIME], BATCH, 64, 6);
    assert!(path.loss(&six).is_err(), "there is no output 5");
}
