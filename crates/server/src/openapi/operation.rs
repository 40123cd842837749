//! Description of one method of one route: request body, parameters and responses.

use schemars::{JsonSchema, Schema, SchemaGenerator};

/// Function that generates the schema of a type.
pub(crate) type SchemaOf = fn(&mut SchemaGenerator) -> Schema;

/// Generates the schema of `T`; the tables store it as a [`SchemaOf`].
pub(crate) fn schema_of<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    generator.subschema_for::<T>()
}

/// Relation of a route to the same route of the original API.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RouteStatus {
    /// The route does what the original does.
    Supported,
    /// The original API lacks this route: Puna adds it.
    Additive,
    /// The route exists to answer with an error.
    Refused,
}

impl RouteStatus {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Supported => "supported",
            Self::Additive => "additive",
            Self::Refused => "refused",
        }
    }
}

/// Body of a request.
pub(crate) enum RequestBody {
    Nothing,
    Json {
        schema: SchemaOf,
        /// Required fields: a request without one of them is refused.
        required: &'static [&'static str],
        /// Valid request in JSON.
        example: &'static str,
    },
    /// Any bytes, `application/octet-stream`.
    Bytes,
    /// `multipart/form-data`: name of each field, whether it is required, and its description.
    Form(&'static [(&'static str, bool, &'static str)]),
}

/// Body of a response.
#[derive(Clone, Copy)]
pub(crate) enum ResponseBody {
    Nothing,
    Text(&'static str),
    Json(SchemaOf),
    /// `application/x-ndjson`: one JSON object per line.
    Lines(SchemaOf),
    /// `text/event-stream`: one JSON object per event.
    Events(SchemaOf),
}

/// Parameter outside of the body.
pub(crate) struct Parameter {
    pub(crate) name: &'static str,
    /// `path`, `query` or `header`.
    pub(crate) location: &'static str,
    pub(crate) description: &'static str,
    /// Schema of the parameter in JSON.
    pub(crate) schema: &'static str,
}

/// One method of one route.
pub(crate) struct Operation {
    pub(crate) method: &'static str,
    /// Pattern of the path in the table of routes.
    pub(crate) path: &'static str,
    /// Unique `operationId` in the document.
    pub(crate) id: &'static str,
    /// Summary in a few words.
    pub(crate) summary: &'static str,
    /// Longer description; may be empty.
    pub(crate) description: &'static str,
    pub(crate) state: RouteStatus,
    pub(crate) body: RequestBody,
    pub(crate) parameters: Vec<Parameter>,
    /// Status, description and bodies of the successful responses.
    pub(crate) responses: Vec<(u16, &'static str, Vec<ResponseBody>)>,
    /// Status codes of the errors, sorted.
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
            description: "",
            state: RouteStatus::Supported,
            body: RequestBody::Nothing,
            parameters: Vec::new(),
            responses: Vec::new(),
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

    pub(crate) fn description(self, description: &'static str) -> Self {
        Self { description, ..self }
    }

    /// Marks the route as an addition of Puna.
    pub(crate) fn additive(self) -> Self {
        Self { state: RouteStatus::Additive, ..self }
    }

    /// Marks a route that only answers with this error status.
    pub(crate) fn refused(self, status: u16) -> Self {
        Self { state: RouteStatus::Refused, ..self }.errors(&[status])
    }

    /// Sets a JSON body, and adds the errors of an invalid body.
    pub(crate) fn json<T: JsonSchema>(
        self,
        required: &'static [&'static str],
        example: &'static str,
    ) -> Self {
        Self { body: RequestBody::Json { schema: schema_of::<T>, required, example }, ..self }
            .errors(&[400, 408, 413])
    }

    /// Sets a body that is not JSON, and adds the errors of an invalid body.
    pub(crate) fn body(self, body: RequestBody) -> Self {
        Self { body, ..self }.errors(&[400, 408, 413])
    }

    pub(crate) fn parameter(
        mut self,
        location: &'static str,
        name: &'static str,
        description: &'static str,
        schema: &'static str,
    ) -> Self {
        self.parameters.push(Parameter { name, location, description, schema });
        self
    }

    pub(crate) fn response(
        mut self,
        status: u16,
        description: &'static str,
        contents: &[ResponseBody],
    ) -> Self {
        self.responses.push((status, description, contents.to_vec()));
        self
    }

    /// Adds the response 200 with one JSON object.
    pub(crate) fn object<T: JsonSchema>(self, description: &'static str) -> Self {
        self.response(200, description, &[ResponseBody::Json(schema_of::<T>)])
    }

    pub(crate) fn errors(mut self, statuses: &[u16]) -> Self {
        self.errors.extend_from_slice(statuses);
        self.errors.sort_unstable();
        self.errors.dedup();
        self
    }

    /// Adds the errors of finding and loading a model.
    pub(crate) fn loads_model(self) -> Self {
        self.errors(&[400, 403, 404, 500, 503])
    }
}
