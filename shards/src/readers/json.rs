//! The text of a JSON line.

use std::borrow::Cow;

use serde::de::{
    Deserialize, DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor,
};

use super::Refusal;

/// Deepest accepted nesting: serde_json's limit for values that it keeps.
const DEEPEST: usize = 128;

/// The text of a document on a line: the value of `field`.
pub(super) fn text_of(line: &[u8], field: &str) -> Result<String, Refusal> {
    let line = std::str::from_utf8(without_mark(line)).map_err(|_| Refusal::NotUtf8)?;
    if nested_too_deep(line.as_bytes()) {
        return Err(Refusal::NestedTooDeep);
    }
    let mut json = serde_json::Deserializer::from_str(line);
    let value = Keep(field).deserialize(&mut json).and_then(|value| json.end().map(|()| value));
    match value.map_err(|_| Refusal::InvalidJson)? {
        Value::Object(Some(Text(Some(text)))) if is_blank(&text) => {
            drop(text);
            Err(Refusal::EmptyText)
        }
        Value::Object(Some(Text(Some(text)))) => Ok(text),
        Value::Object(Some(Text(None))) => Err(Refusal::TextWrongType),
        Value::Object(None) => Err(Refusal::NoText),
        Value::Other => Err(Refusal::NotAnObject),
    }
}

/// The bytes without a byte-order mark at the start.
pub(super) fn without_mark(bytes: &[u8]) -> &[u8] {
    bytes.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(bytes)
}

/// True if a text has only white space and invisible marks.
pub(super) fn is_blank(text: &str) -> bool {
    text.chars().all(|character| character.is_whitespace() || matches!(character, '\u{200B}' | '\u{FEFF}'))
}

/// True if brackets nest deeper than [`DEEPEST`]. Brackets in strings do not count. For invalid JSON either answer is
/// possible.
fn nested_too_deep(line: &[u8]) -> bool {
    let (mut depth, mut in_string, mut escaped) = (0usize, false, false);
    for &byte in line {
        if in_string {
            in_string = escaped || byte != b'"';
            escaped = !escaped && byte == b'\\';
            continue;
        }
        match byte {
            b'"' => in_string = true,
            b'[' | b'{' => {
                depth += 1;
                if depth > DEEPEST {
                    return true;
                }
            }
            b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    false
}

/// The value of a line. Only the text is kept; of repeated fields the last counts, as in Python.
enum Value {
    Object(Option<Text>),
    Other,
}

/// A string, or `None` for any other type.
struct Text(Option<String>);

/// Keeps the field with this name.
struct Keep<'f>(&'f str);

impl<'de> DeserializeSeed<'de> for Keep<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Keep<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a JSON value")
    }
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut text = None;
        while let Some(key) = map.next_key::<Cow<'de, str>>()? {
            if key == self.0 {
                text = Some(map.next_value()?);
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(Value::Object(text))
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Value::Other)
    }
    fn visit_str<E: Error>(self, _: &str) -> Result<Value, E> {
        Ok(Value::Other)
    }
    fn visit_bool<E: Error>(self, _: bool) -> Result<Value, E> {
        Ok(Value::Other)
    }
    fn visit_i64<E: Error>(self, _: i64) -> Result<Value, E> {
        Ok(Value::Other)
    }
    fn visit_u64<E: Error>(self, _: u64) -> Result<Value, E> {
        Ok(Value::Other)
    }
    fn visit_f64<E: Error>(self, _: f64) -> Result<Value, E> {
        Ok(Value::Other)
    }
    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Other)
    }
}

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Keep;
        impl<'de> Visitor<'de> for Keep {
            type Value = Text;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a JSON value")
            }
            fn visit_str<E: Error>(self, text: &str) -> Result<Text, E> {
                Ok(Text(Some(text.to_owned())))
            }
            fn visit_string<E: Error>(self, text: String) -> Result<Text, E> {
                Ok(Text(Some(text)))
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Text, A::Error> {
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                Ok(Text(None))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Text, A::Error> {
                while seq.next_element::<IgnoredAny>()?.is_some() {}
                Ok(Text(None))
            }
            fn visit_bool<E: Error>(self, _: bool) -> Result<Text, E> {
                Ok(Text(None))
            }
            fn visit_i64<E: Error>(self, _: i64) -> Result<Text, E> {
                Ok(Text(None))
            }
            fn visit_u64<E: Error>(self, _: u64) -> Result<Text, E> {
                Ok(Text(None))
            }
            fn visit_f64<E: Error>(self, _: f64) -> Result<Text, E> {
                Ok(Text(None))
            }
            fn visit_unit<E: Error>(self) -> Result<Text, E> {
                Ok(Text(None))
            }
        }
        deserializer.deserialize_any(Keep)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn only_a_string_called_text_is_taken() {
        let cases: [(&str, Result<&str, Refusal>); 18] = [
            (r#"{"text":"a","url":null}"#, Ok("a")),
            ("\u{FEFF}{\"text\":\"a\"}\r\n", Ok("a")),
            (r#"{"text":"first","text":"last"}"#, Ok("last")),
            (r#"{"text":"a\u0000b","n":1e999}"#, Ok("a\0b")),
            (r#"{"\u0074ext":"a"}"#, Ok("a")),
            ("prose", Err(Refusal::InvalidJson)),
            (r#"{"text":"a",}"#, Err(Refusal::InvalidJson)),
            (r#"{"text":"\ud800"}"#, Err(Refusal::InvalidJson)),
            ("{\"text\":\"a\0b\"}", Err(Refusal::InvalidJson)),
            (r#"{"text":"a"}{"text":"b"}"#, Err(Refusal::InvalidJson)),
            (r#"["text"]"#, Err(Refusal::NotAnObject)),
            (r#""text""#, Err(Refusal::NotAnObject)),
            ("null", Err(Refusal::NotAnObject)),
            (r#"{"Text":"a"}"#, Err(Refusal::NoText)),
            (r#"{"text":null}"#, Err(Refusal::TextWrongType)),
            (r#"{"text":{"text":"a"}}"#, Err(Refusal::TextWrongType)),
            (r#"{"text":12}"#, Err(Refusal::TextWrongType)),
            ("{\"text\":\" \\n\u{A0}\u{200B}\"}", Err(Refusal::EmptyText)),
        ];
        for (line, outcome) in cases {
            assert_eq!(text_of(line.as_bytes(), "text"), outcome.map(str::to_owned), "{line:?}");
        }
        assert_eq!(text_of(b"{\"text\":\"caf\xE9\"}", "text"), Err(Refusal::NotUtf8));
        assert_eq!(text_of(b"{\"text\":1,\"content\":\"a\"}", "content").as_deref(), Ok("a"));
    }

    #[test]
    fn deep_nesting_is_refused_and_brackets_in_strings_are_not() {
        let deep = format!("{{\"text\":\"a\",\"x\":{}{}}}", "[".repeat(200_000), "]".repeat(200_000));
        assert_eq!(text_of(deep.as_bytes(), "text"), Err(Refusal::NestedTooDeep));
        let unclosed = "[".repeat(200_000);
        assert_eq!(text_of(unclosed.as_bytes(), "text"), Err(Refusal::NestedTooDeep));
        let brackets = format!("{{\"text\":\"\\\"{}\"}}", "[{".repeat(1000));
        assert_eq!(text_of(brackets.as_bytes(), "text").unwrap().len(), 2001);
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = text_of(&bytes, "text");
        }

        #[test]
        fn any_text_comes_back(text in "\\PC{0,50}|[\u{0}-\u{1f}\"\\\\]{1,20}x") {
            let line = serde_json::json!({ "text": text }).to_string();
            prop_assert_eq!(text_of(line.as_bytes(), "text").ok(), (!is_blank(&text)).then_some(text));
        }
    }
}
