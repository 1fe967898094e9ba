//! Chats as texts for the model: the template of a model that was trained on chats.

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
        let text = template.render(values).map_err(|error| refused(&error))?;
        (self.encode)(&text).map_err(|error| refused(&error))
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
}
