//! Merging TOML tables.

use toml::{Table, Value};

/// Merges `over` into `base`. Tables are merged key by key. All other values, lists too, are replaced.
pub(crate) fn merge(base: &mut Table, over: &Table) {
    for (key, value) in over {
        match (base.get_mut(key), value) {
            (Some(Value::Table(base)), Value::Table(over)) => merge(base, over),
            _ => {
                base.insert(key.clone(), value.clone());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_merged_and_lists_replaced() {
        let mut base: Table = toml::from_str("a = 1\nb.c = 2\nb.d = 3\nlist = [1, 2]").unwrap();
        merge(&mut base, &toml::from_str("b.c = 4\nlist = [5]\nnew.e = 6").unwrap());
        let expected: Table = toml::from_str("a = 1\nb.c = 4\nb.d = 3\nlist = [5]\nnew.e = 6").unwrap();
        assert_eq!(base, expected);
    }
}
