//! What one method of one route takes and answers.

use schemars::{JsonSchema, Schema, SchemaGenerator};

/// Makes the schema of a type.
pub(crate) type SchemaOf = fn(&mut SchemaGenerator) -> Schema;

/// The schema of a type, for the tables.
pub(crate) fn of<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    generator.subschema_for::<T>()
}

/// How a route stands to the dialect's original.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    /// It does what the original does.
    Supported,
    /// The original has none such.
    Additive,
    /// It is there to say no.
    Refused,
}

impl State {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Supported => "supported",
            Self::Additive => "additive",
            Self::Refused => "refused",
        }
    }
}

/// What a request carries.
pub(crate) enum Body {
    Nothing,
    Json {
        schema: SchemaOf,
        /// Fields without which the request is refused.
        required: &'static [&'static str],
        /// A request that works, in JSON.
        example: &'static str,
    },
    /// Any bytes.
    Bytes,
    /// A form with files: names, whether they are required, and what they are.
    Form(&'static [(&'static str, bool, &'static str)]),
}

/// What an answer carries.
#[derive(Clone, Copy)]
pub(crate) enum Content {
    Nothing,
    Text(&'static str),
    Json(SchemaOf),
    /// `application/x-ndjson`: an object a line.
    Lines(SchemaOf),
    /// `text/event-stream`: an object an event.
    Events(SchemaOf),
}

/// A parameter outside of the body.
pub(crate) struct Parameter {
    pub(crate) name: &'static str,
    /// `path`, `query` or `header`.
    pub(crate) place: &'static str,
    pub(crate) about: &'static str,
    /// Its schema in JSON.
    pub(crate) schema: &'static str,
}

/// A method of a route.
pub(crate) struct Operation {
    pub(crate) method: &'static str,
    /// The pattern in the table of routes.
    pub(crate) path: &'static str,
    /// A name in the document that no other operation has.
    pub(crate) id: &'static str,
    /// In a few words.
    pub(crate) summary: &'static str,
    /// More of them; may be empty.
    pub(crate) about: &'static str,
    pub(crate) state: State,
    pub(crate) body: Body,
    pub(crate) parameters: Vec<Parameter>,
    /// Status, words and contents of answers that are no errors.
    pub(crate) answers: Vec<(u16, &'static str, Vec<Content>)>,
    /// Statuses of errors.
    pub(crate) errors: Vec<u16>,
}

impl Operation {
    pub(crate) fn new(
        method: &'static str,
        path: &'static str,
        id: &'static str,
        summary: &'static str,
    ) -> Self {
        Self {
            method,
            path,
            id,
            summary,
            about: "",
            state: State::Supported,
            body: Body::Nothing,
            parameters: Vec::new(),
            answers: Vec::new(),
            errors: Vec::new(),
        }
    }

    pub(crate) fn get(path: &'static str, id: &'static str, summary: &'static str) -> Self {
        Self::new("GET", path, id, summary)
    }

    pub(crate) fn post(path: &'static str, id: &'static str, summary: &'static str) -> Self {
        Self::new("POST", path, id, summary)
    }

    pub(crate) fn delete(path: &'static str, id: &'static str, summary: &'static str) -> Self {
        Self::new("DELETE", path, id, summary)
    }

    pub(crate) fn about(self, about: &'static str) -> Self {
        Self { about, ..self }
    }

    /// The original has no such route.
    pub(crate) fn additive(self) -> Self {
        Self { state: State::Additive, ..self }
    }

    /// The route only says no, with this status.
    pub(crate) fn refused(self, status: u16) -> Self {
        Self { state: State::Refused, ..self }.errors(&[status])
    }

    /// A JSON body, and what comes of one that is none.
    pub(crate) fn json<T: JsonSchema>(
        self,
        required: &'static [&'static str],
        example: &'static str,
    ) -> Self {
        Self { body: Body::Json { schema: of::<T>, required, example }, ..self }
            .errors(&[400, 408, 413])
    }

    /// Another body, and what comes of one that is none.
    pub(crate) fn body(self, body: Body) -> Self {
        Self { body, ..self }.errors(&[400, 408, 413])
    }

    pub(crate) fn parameter(
        mut self,
        place: &'static str,
        name: &'static str,
        about: &'static str,
        schema: &'static str,
    ) -> Self {
        self.parameters.push(Parameter { name, place, about, schema });
        self
    }

    pub(crate) fn answer(mut self, status: u16, about: &'static str, contents: &[Content]) -> Self {
        self.answers.push((status, about, contents.to_vec()));
        self
    }

    /// 200 with an object.
    pub(crate) fn object<T: JsonSchema>(self, about: &'static str) -> Self {
        self.answer(200, about, &[Content::Json(of::<T>)])
    }

    pub(crate) fn errors(mut self, statuses: &[u16]) -> Self {
        self.errors.extend_from_slice(statuses);
        self.errors.sort_unstable();
        self.errors.dedup();
        self
    }

    /// Errors of looking for a model and of loading it.
    pub(crate) fn loads(self) -> Self {
        self.errors(&[400, 403, 404, 500, 503])
    }
}
