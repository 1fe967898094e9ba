//! Chats as texts for the model: the template of a model that was trained on chats.

use std::io;

use dipaco_infer::BoxError;
use minijinja::syntax::SyntaxConfig;
use minijinja::{Environment, ErrorKind, Value, context};
use minijinja_contrib::pycompat::unknown_method_callback;

use crate::ServerError;
use crate::error::ApiError;

/// Name of the template in its environment.
const NAME: &str = "chat_template";
/// Most steps of a template. A loop over a thousand messages takes some ten thousand.
const MOST_STEPS: u64 = 10_000_000;
/// Most bytes of the text of a chat, four times the default of `serve.body_limit`. The steps alone would let a template write
/// 640 MB, and tokens need three hundred times as much memory as their text while they are made.
const LONGEST_TEXT: usize = 8_000_000;

/// Encodes a text of a template. Unlike in a prompt, the text of a special token becomes that token.
pub type EncodeChat = Box<dyn Fn(&str) -> Result<Vec<u32>, BoxError> + Send + Sync>;

/// A chat template in Jinja, as models of Hugging Face have it, and the tokenizer of its texts.
///
/// A user's text can hold the text of a special token and so pretend to be another speaker, as in other servers.
pub struct ChatTemplate {
    /// The template itself.
    text: String,
    environment: Environment<'static>,
    encode: EncodeChat,
    tokens: TemplateTokens,
}

/// Texts of the special tokens that templates name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TemplateTokens {
    /// `bos_token`, which begins a text. Empty for a model without such a token.
    pub bos: String,
    /// `eos_token`, which ends a text.
    pub eos: String,
}

impl TemplateTokens {
    /// The texts of a tokenizer with one special token, which ends a text and begins the next one.
    #[must_use]
    pub fn of_end(end_of_text: &str) -> Self {
        Self { bos: end_of_text.to_owned(), eos: end_of_text.to_owned() }
    }
}

/// The answer to a chat with a model that has no template, or one with this fault.
pub(crate) fn no_chat(fault: Option<&str>) -> ApiError {
    let reason = match fault {
        None => "this model has no chat template".to_owned(),
        Some(fault) => format!("this model has no chat template that can be used ({fault})"),
    };
    let message = format!("{reason}: it continues text, so use POST /v1/completions with a prompt");
    ApiError { code: Some("no_chat_template"), ..ApiError::field("messages", message) }
}

/// A message of a chat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Message {
    /// The speaker: `system`, `user` or `assistant`, and what else the template knows.
    pub(crate) role: String,
    /// The text.
    pub(crate) content: String,
}

impl ChatTemplate {
    /// Reads a template.
    ///
    /// # Errors
    /// [`ServerError::ChatTemplate`] when it is not valid Jinja.
    pub fn new(template: String, tokens: TemplateTokens, encode: EncodeChat) -> Result<Self, ServerError> {
        let unusable = |source| ServerError::ChatTemplate { source: Box::new(source) };
        let mut environment = Environment::new();
        // As in transformers, whose templates these are.
        let syntax =
            SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build().map_err(unusable)?;
        environment.set_syntax(syntax);
        environment.set_fuel(Some(MOST_STEPS));
        environment.set_unknown_method_callback(unknown_method_callback);
        environment.add_function("raise_exception", |message: String| {
            Err::<String, _>(minijinja::Error::new(ErrorKind::InvalidOperation, message))
        });
        environment.add_template_owned(NAME, template.clone()).map_err(unusable)?;
        Ok(Self { text: template, environment, encode, tokens })
    }

    /// The template itself.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// The token ids of a chat. With `answer_begins` the model continues it as the assistant. Occupies a core.
    pub(crate) fn prompt(&self, messages: &[Message], answer_begins: bool) -> Result<Vec<u32>, ApiError> {
        let refused = |error: &dyn std::fmt::Display| {
            ApiError::field("messages", format!("the chat template refuses the messages: {error}"))
        };
        let template = self.environment.get_template(NAME).map_err(|error| refused(&error))?;
        let message = |message: &Message| {
            Value::from_pairs([("role", message.role.as_str()), ("content", message.content.as_str())])
        };
        let messages: Vec<Value> = messages.iter().map(message).collect();
        let TemplateTokens { bos, eos } = &self.tokens;
        let values = context! {
            messages, add_generation_prompt => answer_begins, eos_token => eos, bos_token => bos,
        };
        let mut text = ChatText::default();
        let rendered = template.render_captured_to(values, &mut text).map(drop);
        if text.is_too_long {
            let message = format!(
                "the chat template makes more than {LONGEST_TEXT} bytes of text of the messages: send less text"
            );
            return Err(ApiError { code: Some("request_too_large"), ..ApiError::field("messages", message) });
        }
        rendered.map_err(|error| refused(&error))?;
        let text = String::from_utf8(text.bytes).map_err(|error| refused(&error))?;
        (self.encode)(&text).map_err(|error| refused(&error))
    }
}

/// The text of a chat while a template writes it. A write beyond [`LONGEST_TEXT`] fails.
#[derive(Default)]
struct ChatText {
    bytes: Vec<u8>,
    is_too_long: bool,
}

impl io::Write for ChatText {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() > LONGEST_TEXT - self.bytes.len() {
            self.is_too_long = true;
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The template of SmolLM2, without its default system message.
    const CHAT_ML: &str = "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'].strip() \
                           + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

    fn text(template: &str, messages: &[(&str, &str)]) -> Result<String, ApiError> {
        let encode: EncodeChat = Box::new(|text| Ok(text.bytes().map(u32::from).collect()));
        let tokens = TemplateTokens { bos: "<begin>".into(), eos: "<end>".into() };
        let template = ChatTemplate::new(template.into(), tokens, encode).unwrap();
        let message =
            |&(role, content): &(&str, &str)| Message { role: role.into(), content: content.into() };
        let ids = template.prompt(&messages.iter().map(message).collect::<Vec<_>>(), true)?;
        Ok(String::from_utf8(ids.into_iter().map(|id| u8::try_from(id).unwrap()).collect()).unwrap())
    }

    #[test]
    fn templates_of_models_are_rendered_as_in_transformers() {
        assert_eq!(
            text(CHAT_ML, &[("system", "Be kind."), ("user", " Hi ")]).unwrap(),
            "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
        );
        assert_eq!(
            text("{% if true %}\n {{ bos_token }}a{{ eos_token }}\n{% endif %}\n", &[]).unwrap(),
            " <begin>a<end>\n"
        );
        let strict =
            "{% if messages[0]['role'] != 'user' %}{{ raise_exception('the user begins') }}{% endif %}";
        let error = text(strict, &[("system", "x")]).unwrap_err();
        assert!(error.status == 400 && error.message.contains("the user begins"), "{}", error.message);
        let encode: EncodeChat = Box::new(|_| Ok(Vec::new()));
        assert!(ChatTemplate::new("{% if %}".into(), TemplateTokens::default(), encode).is_err());
    }

    #[test]
    fn an_endless_template_ends_with_an_error() {
        let endless = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}";
        let error = text(endless, &[("user", "x")]).unwrap_err();
        assert!(error.status == 400 && error.message.contains("fuel"), "{}", error.message);
    }

    #[test]
    fn a_template_writes_no_endless_text() {
        let encode: EncodeChat = Box::new(|text| Ok(vec![u32::try_from(text.len())?]));
        let template = "{% for message in messages %}{{ 'a' * (message['content'] | int) }}{% endfor %}";
        let template = ChatTemplate::new(template.into(), TemplateTokens::default(), encode).unwrap();
        let user = |content: &str| Message { role: "user".into(), content: content.into() };
        let ids = template.prompt(&[user("7999999"), user("1")], true).unwrap();
        assert_eq!(ids, [8_000_000]);
        for messages in [[user("7999999"), user("2")], [user("90000000"), user("0")]] {
            let error = template.prompt(&messages, true).unwrap_err();
            assert_eq!((error.status.as_u16(), error.code), (400, Some("request_too_large")));
            assert!(error.message.contains("more than 8000000 bytes"), "{}", error.message);
        }
    }
}
