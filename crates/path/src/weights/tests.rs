//! Tests of the start of a fragment.

use dipaco_topology::ModuleId;

use super::*;

/// The global weights of a fragment of two values.
fn global(received: bool) -> GlobalFragment {
    let fragment = FragmentId { module: ModuleId { level: 0, index: 0 }, index: 0 };
    GlobalFragment { fragment, values: Arc::new(vec![1.0, 2.0]), received, share: 1.0 }
}

/// The lead holds what the path has sent already, so it is a part of the base in every lease until the next send.
#[test]
fn a_path_with_a_lead_begins_from_the_global_weights_and_its_lead() {
    let ahead = Ahead { weights: vec![0.25, -0.5], momentum: vec![9.0; 2], sent: vec![7.0; 2] };
    let own = vec![3.0, 4.0];
    let kept =
        FragmentState { weights: Some(own.clone()), ahead: Some(ahead.clone()), ..FragmentState::default() };
    for (received, local) in [(true, vec![1.25, 1.5]), (false, own)] {
        let (fragment, weights) = start_fragment(&global(received), kept.clone(), Blend::default());
        assert_eq!(fragment.base.as_deref(), Some(&vec![1.25, 1.5]), "{received}");
        assert_eq!((weights, fragment.under_way), (Some(local), false));
        assert_eq!(fragment.ahead, Some(ahead.clone()));
    }
}

#[test]
fn a_path_without_a_lead_begins_from_the_global_weights_or_its_last_send() {
    let own = vec![3.0, 4.0];
    for base in [None, Some(vec![5.0, 6.0])] {
        let kept =
            FragmentState { weights: Some(own.clone()), base: base.clone(), ..FragmentState::default() };
        let (fragment, weights) = start_fragment(&global(false), kept, Blend::default());
        assert_eq!(fragment.base.as_deref(), Some(base.as_ref().unwrap_or(&vec![1.0, 2.0])));
        assert_eq!((weights, fragment.under_way), (Some(own.clone()), base.is_some()));
    }
}
