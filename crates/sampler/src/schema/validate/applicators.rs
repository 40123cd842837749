//! Keywords that apply subschemas.

use serde_json::{Map, Value};

use super::evaluated::EvaluatedParts;
use super::{References, Validator, WorkLimitExceeded, child, within};

type Object = Map<String, Value>;

impl<'a> Validator<'a> {
    /// Checks subschemas for the same value.
    pub(super) fn check_in_place(
        &mut self,
        map: &'a Object,
        pointer: &str,
        value: &Value,
        evaluated: &mut EvaluatedParts,
    ) -> Result<bool, WorkLimitExceeded> {
        let mut is_valid = true;
        let referred =
            References::reference_in(map).and_then(|reference| self.references.resolve(reference));
        if let Some((target, schema)) = referred {
            is_valid &= self.check_and_merge(schema, &target, value, evaluated)?;
        }
        for (i, part) in list(map, "allOf").enumerate() {
            is_valid &= self.check_and_merge(
                part,
                &within(pointer, "allOf", &i.to_string()),
                value,
                evaluated,
            )?;
        }
        is_valid &= self.check_any_of(map, pointer, value, evaluated)?;
        is_valid &= self.check_one_of(map, pointer, value, evaluated)?;
        if let Some(part) = map.get("not")
            && self.try_schema(part, &child(pointer, "not"), value)?.is_some()
        {
            self.fail("not", pointer);
            is_valid = false;
        }
        is_valid &= self.check_condition(map, pointer, value, evaluated)?;
        let Value::Object(object) = value else { return Ok(is_valid) };
        for keyword in ["dependentSchemas", "dependencies"] {
            for (name, part) in named(map, keyword) {
                if !object.contains_key(name) || part.is_array() {
                    continue;
                }
                match self.try_schema(part, &within(pointer, keyword, name), value)? {
                    Some(more) => evaluated.add(more),
                    None => {
                        self.fail(keyword, pointer);
                        is_valid = false;
                    }
                }
            }
        }
        Ok(is_valid)
    }

    /// Checks a subschema that the value must fit as well.
    fn check_and_merge(
        &mut self,
        schema: &'a Value,
        pointer: &str,
        value: &Value,
        evaluated: &mut EvaluatedParts,
    ) -> Result<bool, WorkLimitExceeded> {
        let checked = self.check(schema, pointer, value)?;
        Ok(checked.map(|more| evaluated.add(more)).is_some())
    }

    fn check_any_of(
        &mut self,
        map: &'a Object,
        pointer: &str,
        value: &Value,
        evaluated: &mut EvaluatedParts,
    ) -> Result<bool, WorkLimitExceeded> {
        let before = self.failures.len();
        let (mut fits, mut is_empty) = (false, true);
        for (i, part) in list(map, "anyOf").enumerate() {
            is_empty = false;
            let checked = self.check(part, &within(pointer, "anyOf", &i.to_string()), value)?;
            fits |= checked.map(|more| evaluated.add(more)).is_some();
        }
        if fits {
            self.failures.truncate(before);
        }
        Ok(fits || is_empty)
    }

    fn check_one_of(
        &mut self,
        map: &'a Object,
        pointer: &str,
        value: &Value,
        evaluated: &mut EvaluatedParts,
    ) -> Result<bool, WorkLimitExceeded> {
        let before = self.failures.len();
        let (mut fitting, mut is_empty) = (0, true);
        for (i, part) in list(map, "oneOf").enumerate() {
            is_empty = false;
            let checked = self.check(part, &within(pointer, "oneOf", &i.to_string()), value)?;
            fitting += usize::from(checked.map(|more| evaluated.add(more)).is_some());
        }
        if fitting > 0 {
            self.failures.truncate(before);
        }
        if fitting > 1 {
            self.fail("oneOf", pointer);
        }
        Ok(fitting == 1 || is_empty)
    }

    fn check_condition(
        &mut self,
        map: &'a Object,
        pointer: &str,
        value: &Value,
        evaluated: &mut EvaluatedParts,
    ) -> Result<bool, WorkLimitExceeded> {
        let Some(condition) = map.get("if") else { return Ok(true) };
        let found = self.try_schema(condition, &child(pointer, "if"), value)?;
        let keyword = if found.is_some() { "then" } else { "else" };
        evaluated.add(found.unwrap_or_default());
        let Some(part) = map.get(keyword) else { return Ok(true) };
        match self.try_schema(part, &child(pointer, keyword), value)? {
            Some(more) => {
                evaluated.add(more);
                Ok(true)
            }
            None => {
                self.fail("if", pointer);
                Ok(false)
            }
        }
    }

    /// Checks the schemas of an object's properties and names.
    pub(super) fn check_object(
        &mut self,
        map: &'a Object,
        pointer: &str,
        object: &Object,
        evaluated: &mut EvaluatedParts,
    ) -> Result<bool, WorkLimitExceeded> {
        let mut is_valid = true;
        let declared = map.get("properties").and_then(Value::as_object);
        for (name, value) in object {
            self.step(1)?;
            let mut is_known = false;
            if let Some(part) = declared.and_then(|declared| declared.get(name)) {
                is_known = true;
                is_valid &=
                    self.check(part, &within(pointer, "properties", name), value)?.is_some();
            }
            for (pattern, part) in named(map, "patternProperties") {
                if self.fits_pattern(pattern, name)? {
                    is_known = true;
                    let part_pointer = within(pointer, "patternProperties", pattern);
                    if self.check(part, &part_pointer, value)?.is_none() {
                        self.fail("patternProperties", pointer);
                        is_valid = false;
                    }
                }
            }
            if let (false, Some(part)) = (is_known, map.get("additionalProperties")) {
                is_known = true;
                if self.check(part, &child(pointer, "additionalProperties"), value)?.is_none() {
                    // Another pattern would have allowed the property.
                    self.fail("patternProperties", pointer);
                    is_valid = false;
                }
            }
            if is_known {
                evaluated.properties.insert(name.clone());
            }
            if let Some(part) = map.get("propertyNames") {
                let name = Value::from(name.as_str());
                if self.try_schema(part, &child(pointer, "propertyNames"), &name)?.is_none() {
                    self.fail("propertyNames", pointer);
                    is_valid = false;
                }
            }
        }
        let Some(part) = map.get("unevaluatedProperties") else { return Ok(is_valid) };
        let part_pointer = child(pointer, "unevaluatedProperties");
        for (_, value) in object.iter().filter(|(name, _)| !evaluated.has_property(name)) {
            if self.check(part, &part_pointer, value)?.is_none() {
                self.fail("unevaluatedProperties", pointer);
                is_valid = false;
            }
        }
        evaluated.all_properties = true;
        Ok(is_valid)
    }

    /// Checks the schemas of an array's items.
    pub(super) fn check_array(
        &mut self,
        map: &'a Object,
        pointer: &str,
        list: &[Value],
        evaluated: &mut EvaluatedParts,
    ) -> Result<bool, WorkLimitExceeded> {
        let mut is_valid = true;
        let (first, keyword) = match (map.get("prefixItems"), map.get("items")) {
            (Some(Value::Array(first)), _) => (first.as_slice(), "prefixItems"),
            (_, Some(Value::Array(first))) => (first.as_slice(), "items"),
            _ => (&[][..], "prefixItems"),
        };
        for (i, (part, value)) in first.iter().zip(list).enumerate() {
            is_valid &=
                self.check(part, &within(pointer, keyword, &i.to_string()), value)?.is_some();
        }
        evaluated.items = evaluated.items.max(first.len().min(list.len()));
        let further = match map.get("items") {
            Some(Value::Array(_)) => Some(("additionalItems", map.get("additionalItems"))),
            items => Some(("items", items)),
        };
        if let Some((keyword, Some(part))) = further {
            for value in list.iter().skip(first.len()) {
                is_valid &= self.check(part, &child(pointer, keyword), value)?.is_some();
            }
            evaluated.items = list.len();
        }
        is_valid &= self.check_contains(map, pointer, list, evaluated)?;
        let Some(part) = map.get("unevaluatedItems") else { return Ok(is_valid) };
        for (i, value) in list.iter().enumerate() {
            if !evaluated.has_item(i)
                && self.check(part, &child(pointer, "unevaluatedItems"), value)?.is_none()
            {
                self.fail("unevaluatedItems", pointer);
                is_valid = false;
            }
        }
        evaluated.items = list.len();
        Ok(is_valid)
    }

    fn check_contains(
        &mut self,
        map: &'a Object,
        pointer: &str,
        list: &[Value],
        evaluated: &mut EvaluatedParts,
    ) -> Result<bool, WorkLimitExceeded> {
        let Some(part) = map.get("contains") else { return Ok(true) };
        let mut found = 0;
        for (i, value) in list.iter().enumerate() {
            if self.try_schema(part, &child(pointer, "contains"), value)?.is_some() {
                found += 1;
                evaluated.others.insert(i);
            }
        }
        let bound = |keyword: &str| map.get(keyword).and_then(Value::as_f64);
        let is_valid = f64::from(found) >= bound("minContains").unwrap_or(1.0)
            && bound("maxContains").is_none_or(|max| f64::from(found) <= max);
        if !is_valid {
            self.fail("contains", pointer);
        }
        Ok(is_valid)
    }
}

fn list<'a>(map: &'a Object, keyword: &str) -> impl Iterator<Item = &'a Value> + use<'a> {
    map.get(keyword).and_then(Value::as_array).into_iter().flatten()
}

fn named<'a>(
    map: &'a Object,
    keyword: &str,
) -> impl Iterator<Item = (&'a String, &'a Value)> + use<'a> {
    map.get(keyword).and_then(Value::as_object).into_iter().flatten()
}
