//! `GET /docs`: the description of the interface for people, made of the document for programs. The page has no script and
//! loads nothing.

use std::fmt::Write;

use serde_json::Value;

const STYLE: &str = "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;\
color:#222;background:#fff}h2{margin:2.5rem 0 0}code,pre{font-family:ui-monospace,monospace}\
table{border-collapse:collapse;width:100%}th,td{text-align:left;vertical-align:top;padding:.3rem .6rem;\
border-top:1px solid #ccc}pre{overflow:auto;background:#f4f4f4;padding:.6rem}\
@media(prefers-color-scheme:dark){body{color:#ddd;background:#181818}pre{background:#242424}a{color:#8cf}}";

/// The page of a document.
pub(super) fn page(document: &Value) -> String {
    let info = &document["info"];
    let mut out = format!(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width\"><title>{title}</title><style>{STYLE}</style></head>\
         <body><h1>{title} {version}</h1><p>{text} <a href=\"openapi.json\">For programs: OpenAPI 3.1</a></p>",
        title = text(&info["title"]),
        version = text(&info["version"]),
        text = text(&info["description"]),
    );
    for (path, operations) in document["paths"].as_object().into_iter().flatten() {
        for (method, operation) in operations.as_object().into_iter().flatten() {
            address(&mut out, document, &format!("{} {path}", method.to_uppercase()), operation);
        }
    }
    out.push_str("</body></html>\n");
    out
}

/// Writes a section about an address. Writing into a text can't fail.
fn address(out: &mut String, document: &Value, name: &str, operation: &Value) {
    let _ = write!(out, "<h2><code>{}</code></h2><p>{}</p>", escaped(name), text(&operation["summary"]));
    let request = &operation["requestBody"]["content"]["application/json"]["schema"];
    if let Some((_, schema)) = referred(document, request) {
        fields(out, schema);
    }
    let answer = &operation["responses"]["200"]["content"]["application/json"]["schema"];
    if let Some((name, schema)) = referred(document, answer) {
        let shown = serde_json::to_string_pretty(schema).unwrap_or_default();
        let _ = write!(
            out,
            "<details><summary>Answer: {}</summary><pre>{}</pre></details>",
            escaped(name),
            escaped(&shown)
        );
    }
}

/// Writes the table of a request's fields.
fn fields(out: &mut String, schema: &Value) {
    out.push_str("<table><tr><th>field<th>value<th>meaning");
    let required = schema["required"].as_array().map_or(&[][..], Vec::as_slice);
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        let needed = if required.iter().any(|other| other == name) { " (required)" } else { "" };
        let _ = write!(
            out,
            "<tr><td><code>{}</code>{needed}<td>{}<td>{}",
            escaped(name),
            escaped(&value(field)),
            text(&field["description"])
        );
    }
    out.push_str("</table>");
}

/// Name and schema behind a reference.
fn referred<'a>(document: &'a Value, schema: &'a Value) -> Option<(&'a str, &'a Value)> {
    let pointer = schema["$ref"].as_str()?.strip_prefix('#')?;
    Some((pointer.rsplit('/').next()?, document.pointer(pointer)?))
}

/// The values that a schema allows, in words. That `null` stands for an absent field goes without saying.
fn value(schema: &Value) -> String {
    let any = |values: &[Value], shown: &dyn Fn(&Value) -> String| {
        let shown: Vec<String> = values.iter().filter(|value| !is_null(value)).map(shown).collect();
        shown.join(" or ")
    };
    if let Some(forms) = schema["anyOf"].as_array() {
        return any(forms, &value);
    }
    if let Some(values) = schema["enum"].as_array() {
        return any(values, &Value::to_string);
    }
    let kind = match &schema["type"] {
        Value::Array(kinds) => any(kinds, &|kind| kind.as_str().unwrap_or_default().to_owned()),
        kind => kind.as_str().unwrap_or_default().to_owned(),
    };
    let kind =
        if schema["items"].is_object() { format!("list of {}", value(&schema["items"])) } else { kind };
    match (schema.get("minimum"), schema.get("maximum")) {
        (Some(least), Some(most)) => format!("{kind}, {least} to {most}"),
        (Some(least), None) => format!("{kind}, {least} or more"),
        (None, _) => kind,
    }
}

/// True for `null` and for the schemas that allow nothing else.
fn is_null(value: &Value) -> bool {
    value.is_null() || value == "null" || value["type"] == "null"
}

/// A text of the document, escaped.
fn text(value: &Value) -> String {
    escaped(value.as_str().unwrap_or_default())
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
