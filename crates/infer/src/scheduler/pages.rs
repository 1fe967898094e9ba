//! The pages of keys and values, and the prefixes that they hold.

use std::collections::BTreeSet;
use std::collections::btree_map::{BTreeMap, Entry};

use dipaco_model::PAGE_TOKENS;

/// What the first stages of a path have left in a full page: the client, the content before it, and its tokens.
///
/// A client finds its own contents only, so the cache does not tell it the texts of others.
///
/// The content before the first page of a sequence is the number of the modules of these stages, so equal contents are the
/// keys and values of equal tokens under equal weights. A page has a content for each number of stages that paths may have
/// in common. Contents are compared whole. Nothing depends on a hash.
type Key = (u64, Content, [u32; PAGE_TOKENS]);

/// Number of a content. No two contents get the same number, and a forgotten content gets a new one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Content(pub(crate) u64);

/// The free pages, and the contents of the full ones.
#[derive(Debug)]
pub(crate) struct PagePool {
    pages: Vec<Page>,
    /// Pages without a holder, those without content first, then the least recently freed.
    free: BTreeSet<(u64, u32)>,
    /// The page of each content, and the content's number.
    index: BTreeMap<Key, (u32, Content)>,
    /// Number of the next content, above the numbers of all modules.
    next: u64,
    freed: u64,
}

#[derive(Debug, Default)]
struct Page {
    holders: u32,
    contents: Vec<Key>,
    /// When it was freed; 0 for a page without content.
    freed: u64,
}

/// Contents below this number stand for modules.
const FIRST: u64 = 1 << 32;

impl PagePool {
    pub(crate) fn new(pages: usize) -> Self {
        let count = u32::try_from(pages).unwrap_or(u32::MAX);
        Self {
            pages: (0..count).map(|_| Page::default()).collect(),
            free: (0..count).map(|page| (0, page)).collect(),
            index: BTreeMap::new(),
            next: FIRST,
            freed: 0,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.pages.len()
    }

    /// Number of pages without a holder.
    pub(crate) fn free(&self) -> usize {
        self.free.len()
    }

    /// Takes a free page and forgets its contents.
    pub(crate) fn take(&mut self) -> Option<u32> {
        let (_, number) = self.free.pop_first()?;
        let page = &mut self.pages[number as usize];
        for key in page.contents.drain(..) {
            self.index.remove(&key);
        }
        page.holders = 1;
        Some(number)
    }

    /// The full page of a client with this content.
    pub(crate) fn find(
        &self,
        client: u64,
        before: Content,
        tokens: &[u32; PAGE_TOKENS],
    ) -> Option<(u32, Content)> {
        self.index.get(&(client, before, *tokens)).copied()
    }

    /// Adds a holder to a page.
    pub(crate) fn hold(&mut self, number: u32) {
        let page = &mut self.pages[number as usize];
        if page.holders == 0 {
            self.free.remove(&(page.freed, number));
        }
        page.holders += 1;
    }

    /// Takes a holder from a page. Its contents stay until the page is taken.
    pub(crate) fn release(&mut self, number: u32) {
        let page = &mut self.pages[number as usize];
        page.holders -= 1;
        if page.holders == 0 {
            self.freed += 1;
            page.freed = if page.contents.is_empty() { 0 } else { self.freed };
            self.free.insert((page.freed, number));
        }
    }

    /// Records a content of a full page, for other sequences of the client. If another page has this content already, this
    /// one stays without. Returns the content's number.
    pub(crate) fn publish(
        &mut self,
        number: u32,
        client: u64,
        before: Content,
        tokens: &[u32; PAGE_TOKENS],
    ) -> Content {
        let key = (client, before, *tokens);
        match self.index.entry(key) {
            Entry::Occupied(other) => other.get().1,
            Entry::Vacant(place) => {
                let content = Content(self.next);
                self.next += 1;
                place.insert((number, content));
                self.pages[number as usize].contents.push(key);
                content
            }
        }
    }
}
