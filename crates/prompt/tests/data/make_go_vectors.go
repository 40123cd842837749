// Makes go-vectors.jsonl: many small templates over one value, rendered by Go's text/template.
//
//	go run make_go_vectors.go > go-vectors.jsonl        (made with go1.26.8)
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"text/template"
)

const data = `{"s":"abc","e":"","u":"né<b>&\"'日本","n":3,"f":1.5,"big":12345678,"tiny":0.00001234,"huge":1e21,"neg":-2.25,
"t":true,"no":false,"nil":null,"l":[1,"b",null,true,[2,"x"],{"k":"v"}],"empty":[],"m":{"b":"x","a":1,"deep":{"z":[1,2],"y":null}},
"em":{},"msgs":[{"Role":"user","Content":"Hi"},{"Role":"assistant","Content":"Hello"},{"Role":"user","Content":"Bye"}]}`

var templates = []string{
	"{{ . }}", "{{ .m }}|{{ .l }}|{{ .em }}|{{ .empty }}", "{{ .n }} {{ .f }} {{ .big }} {{ .tiny }} {{ .huge }} {{ .neg }}",
	"{{ .t }} {{ .no }} {{ .nil }} {{ .nope }}", "{{ .nope.x }}", "{{ .nil.x }}", "{{ .s.A }}", "{{ .l.x }}", "{{ .m.a.b }}",
	"{{ .m.deep.z }} {{ .m.deep.y }} {{ .m.deep.q }}", "{{ (.m).a }} {{ (.m.deep).z }}", "{{ $.m.a }} {{ $ | len }}",
	"{{ range $i := 3 }}{{ $i }}{{ end }}", "{{ range $i, $j := 3 }}{{ $i }}{{ end }}", "{{ range 3 }}{{ . }}{{ end }}", "{{ range 0 }}x{{ else }}none{{ end }}",
	"{{ range .l }}[{{ . }}]{{ end }}", "{{ range $i, $e := .l }}{{ $i }}={{ $e }};{{ end }}", "{{ range $k, $v := .m }}{{ $k }}={{ $v }};{{ end }}",
	"{{ range .s }}{{ . }}{{ end }}", "{{ range .f }}{{ end }}", "{{ range .nope }}x{{ else }}e{{ end }}", "{{ range .nil }}x{{ else }}e{{ end }}", "{{ range .empty }}x{{ else }}e{{ end }}",
	"{{ range $x := .msgs }}{{ .Role }}:{{ $x.Content }}{{ if eq .Role \"assistant\" }}{{ break }}{{ end }},{{ end }}",
	"{{ range $i, $x := .msgs }}{{ if eq $i 1 }}{{ continue }}{{ end }}{{ .Content }}{{ end }}",
	"{{ $x := 1 }}{{ range $x = .l }}{{ $x }},{{ end }}{{ $x }}", "{{ $i := 0 }}{{ $x := 0 }}{{ range $i, $x = .msgs }}{{ end }}{{ $i }}{{ $x.Content }}",
	"{{ $a := 1 }}{{ if true }}{{ $a := 2 }}{{ $a }}{{ end }}{{ $a }}", "{{ $a := 1 }}{{ if true }}{{ $a = 2 }}{{ end }}{{ $a }}", "{{ $x = 2 }}", "{{ $y }}", "{{ if $z := .n }}{{ $z }}{{ end }}{{ $z }}",
	"{{ with .m }}{{ .a }}{{ end }}", "{{ with .e }}x{{ else }}none{{ end }}", "{{ with .e }}x{{ else with .s }}{{ . }}{{ else }}n{{ end }}", "{{ with $x := .s }}{{ $x }}{{ end }}",
	"{{ if .e }}a{{ else if .no }}b{{ else if .s }}c{{ else }}d{{ end }}", "{{ if }}x{{ end }}", "{{ if 1 }}", "{{ if 1 }}{{ else }}{{ else }}{{ end }}", "{{ else }}", "{{ end }}", "{{ break }}", "{{ continue }}",
	"{{ if 0 }}a{{ end }}{{ if 0.0 }}b{{ end }}{{ if \"\" }}c{{ end }}{{ if .em }}d{{ end }}{{ if .nil }}e{{ end }}{{ if -1 }}f{{ end }}",
	"{{ index .m \"a\" }} {{ index .m \"zz\" }} {{ index .l 1 }} {{ index .l 4 1 }} {{ index .m \"deep\" \"z\" 0 }}", "{{ index .l 9 }}", "{{ index .l -1 }}", "{{ index .l \"a\" }}", "{{ index .m 1 }}", "{{ index .s 1 }}", "{{ index .s 9 }}", "{{ index .nope 1 }}", "{{ index .nil 1 }}", "{{ index 3 1 }}", "{{ index }}", "{{ index .m }}", "{{ index .l nil }}",
	"{{ slice .s 1 }} {{ slice .s 1 2 }} {{ slice .s }} {{ slice .l 4 }} {{ slice .l 1 2 }}", "{{ slice .s 5 2 }}", "{{ slice .s 2 1 }}", "{{ slice .l 2 9 }}", "{{ slice .s 0 1 2 }}", "{{ slice .nope 1 }}", "{{ slice 3 1 }}", "{{ slice .l 0 1 3 | len }}",
	"{{ len .s }} {{ len .u }} {{ len .l }} {{ len .m }} {{ len .empty }}", "{{ len .n }}", "{{ len .nope }}", "{{ len .nil }}", "{{ len }}", "{{ len 1 2 }}",
	"{{ eq 1 1 }} {{ eq \"a\" \"a\" }} {{ eq 1 2 3 1 }} {{ eq true true }} {{ eq 1.5 .f }} {{ eq .nope nil }} {{ eq .nope 1 }} {{ eq nil nil }} {{ ne 1 2 }} {{ eq .nil .nope }}",
	"{{ eq 1 1.0 }}", "{{ eq 1 \"1\" }}", "{{ eq .l .l }}", "{{ eq .s .l }}", "{{ eq 1 }}", "{{ eq }}", "{{ ne 1 }}", "{{ eq .m nil }}", "{{ eq .n 3 }}", "{{ eq .n 3.0 }}",
	"{{ lt 1 2 }} {{ le 2 2 }} {{ gt 3 2 }} {{ ge 1 2 }} {{ lt \"a\" \"b\" }} {{ lt 1.5 2.5 }} {{ gt .f 1.0 }}", "{{ lt 1 \"a\" }}", "{{ lt .nope 1 }}", "{{ lt true false }}", "{{ le 1 }}", "{{ gt .l 1 }}",
	"{{ and 1 0 2 }} {{ and 1 2 }} {{ or 0 \"\" \"x\" }} {{ or 0 }} {{ not 1 }} {{ not .nope }} {{ and true (eq 1 2) }} {{ or .s (index .l 99) }}", "{{ and }}", "{{ or }}", "{{ not }}", "{{ not 1 2 }}", "{{ .s | and .t }} {{ 1 | or 0 }}",
	"{{ print 1 2 \"x\" 3 4 .l .nil }} {{ print }}|{{ println \"a\" 1 }}|{{ println }}", "{{ print nil }} {{ print .nope }} {{ print true false }} {{ print \"a\" \"b\" }} {{ print 1.5 2 }}",
	"{{ printf \"%v %d %s %q %t %x %X %o %b %c %U %e %g %f %5.1f|%-6s|%06d|%+d|% d|%%\" .l 3 .s .s true 255 255 8 5 65 128512 1.5 1.5 1.5 2.25 \"ab\" 42 5 6 }}",
	"{{ printf \"%d %s %t %f\" .s 3 1 \"x\" }}", "{{ printf \"%d\" }}", "{{ printf \"x\" 1 \"z\" .nil }}", "{{ printf \"%!\" }}", "{{ printf \"%z\" 3 }}", "{{ printf \"%\" }}", "{{ printf \"%[2]d %[1]d\" 1 2 }}", "{{ printf \"%[3]d\" 1 }}", "{{ printf \"%*d|%-*d|\" 5 1 4 2 }}", "{{ printf \"%.2s|%.3q|%5t|%T %T %T %T\" .s .s true 1 .s .f .l }}",
	"{{ printf \"%x %X % x %#x %#v %#q\" .s .s .s 255 .s .s }}", "{{ printf \"%s\" .m }}", "{{ printf \"%v %v\" .m .em }}", "{{ printf \"%d\" .l }}", "{{ printf \"%s %v %d\" nil nil nil }}", "{{ printf 1 }}", "{{ printf }}", "{{ .s | printf }}", "{{ .s | printf \"%s-%d\" \"a\" }}", "{{ printf \"%8.3f|%-8.2f|%08.2f|%+.1e|%G\" 3.14159 2.5 -1.5 12345.678 1e-10 }}", "{{ printf \"%v %v %v %v\" 1e6 123456.0 1e20 1e-5 }}", "{{ printf \"%6d|%-6d|%x|%#o\" -42 -42 -255 8 }}", "{{ printf \"%q %q\" 'x' \"tab\\tnl\\n\\\"q\\\" é \\u200b\" }}", "{{ printf \"%5c|%-5q|\" 'x' 'y' }}", "{{ printf \"%.0f %.1f %.2f\" 2.5 0.25 1.005 }}", "{{ printf \"%s %s\" true 1.5 }}", "{{ printf \"%t\" .s }}", "{{ printf \"%5v|%-5v|%05v\" .t .s 7 }}", "{{ printf \"%+v %+v\" .m 3 }}",
	"{{ html .u }} {{ html 1 .l }} {{ html .nil }}", "{{ js .u }} {{ js \"a'b<\\n=&\\\\\" }}", "{{ urlquery .u }} {{ urlquery \"a b\" \"&\" }}",
	"{{ call .s 1 }}", "{{ call }}", "{{ call nil }}", "{{ 3 4 }}", "{{ .s 1 }}", "{{ .m.a 1 }}", "{{ \"a\" | 1 }}", "{{ 1 | 2 }}", "{{ 1 | .s }}", "{{ .m | .m.a }}", "{{ $ 1 }}", "{{ nil }}", "{{ nil | print }}", "{{ print nil | print }}", "{{ (nil).x }}", "{{ nil.x }}", "{{ true.x }}", "{{ 1.x }}", "{{ \"a\".x }}", "{{ (1).x }}",
	"{{ define \"t\" }}<{{ . }}|{{ $ }}>{{ end }}{{ template \"t\" .s }}{{ template \"t\" }}", "{{ template \"q\" }}", "{{ template \"q\" . }}", "{{ block \"b\" .s }}[{{ . }}]{{ end }}", "{{ define \"x\" }}", "{{ define x }}{{ end }}", "{{ template }}", "{{ template x }}", "{{ define \"a\" }}1{{ end }}{{ define \"a\" }}2{{ end }}{{ template \"a\" }}", "{{ if 1 }}{{ define \"x\" }}{{ end }}{{ end }}", "{{ define \"t\" }}{{ .x.y }}{{ end }}\n\n{{ template \"t\" .m }}", "{{ define \"t\" }}{{ $v }}{{ end }}", "{{ $v := 1 }}{{ define \"t\" }}{{ $v }}{{ end }}",
	"a {{- \"x\" -}} b", "a {{ \"x\" -}}   \n b", "a \n\t{{- 1 }}", "{{-3}}", "{{- 3}}", "{{3 -}} x", "{{3-}} x", "a {{- /* c */ -}} b", "a {{/* c */}} b", "{{/* a */ }}", "{{/* x }}", "{{ /* x */ }}", "{{- /*x*/ -}}", "a {{- }}", "{{}}", "{{ }}", "{{", "{{ .s", "{{ .s }", "{{ .s }}}}", "}} {{ .s }}", "{{ \"{{\" }}", "{{\n.s\n}}", "{{ .s\n}}", "{{ if\n.s }}x{{\nend }}", "x\n  {{ .s.Q }}", "x\n\n  {{ if .s }}\n{{ foo }}{{ end }}", "é{{ .s.Q }}",
	"{{ 9223372036854775808 }}", "{{ 9223372036854775807 }} {{ -9223372036854775808 }}", "{{ 99999999999999999999 }}", "{{ -0x1f }} {{ 0b11 }} {{ 0o17 }} {{ 1e-7 }} {{ 0x1p4 }} {{ '\\n' }} {{ 017 }} {{ 1_000 }} {{ .5 }} {{ 5. }} {{ +5 }} {{ 1e3 }} {{ 1E3 }}", "{{ 08 }}", "{{ 1_000.5 }} {{ 0x_1F }}", "{{ 1a }}", "{{ 0xg }}", "{{ 'ab' }}", "{{ 'a }}", "{{ '' }}", "{{ '\\'' }} {{ '\\x41' }} {{ '日' }}", "{{ \"\\x41\\101\\u00e9\\U0001F600\\a\" }}", "{{ \"\\q\" }}", "{{ \"abc }}", "{{ \"a\nb\" }}", "{{ `a\nb\\n` }}", "{{ `a }}", "{{ .x:y }}", "{{ .x = 1 }}", "{{ (.m }}", "{{ .m) }}", "{{ () }}", "{{ (.m) (.s) }}", "{{ @ }}", "{{ .s@ }}", "{{ é }}", "{{ .é }}", "{{ $é := 1 }}{{ $é }}", "{{ foo }}", "{{ foo.bar }}", "{{ len.x }}", "{{ .a..b }}", "{{ . .s }}", "{{ .. }}", "{{ | print }}", "{{ 1 | }}", "{{ 1 || 2 }}", "{{ $ }}", "{{ $x:=1 }}{{$x}}", "{{ $x, $y := .l }}", "{{ range $a, $b, $c := .l }}{{ end }}", "{{ range $a, := .l }}{{ end }}", "{{ range $a .l }}{{ end }}", "{{ if else }}", "{{ range end }}", "{{ with else }}{{ end }}", "{{ end end }}", "{{ else x }}", "{{ if 1 }}{{ else with 2 }}{{ end }}", "{{ range .l }}{{ else if 1 }}{{ end }}", "{{ if 1 }}a{{ else if 2 }}b{{ end }}{{ end }}", "{{ true }} {{ false }} {{ truex }}",
	"{{ print (print 1 | printf \"%s-%s\" \"a\") }}", "{{ print (len .l) (index .l 0 | printf \"%v\") }}", "{{ if and (eq .s \"abc\") (or .e .t) (not .no) }}y{{ end }}", "{{ if eq .s \"abc\" | not }}y{{ else }}n{{ end }}", "{{ with $m := index .msgs 0 }}{{ $m.Role }}{{ end }}", "{{ (index .msgs 1).Content }} {{ (index .msgs 1).Nope }}", "{{ (index .msgs 9).Content }}", "{{ $last := \"\" }}{{ range .msgs }}{{ $last = .Content }}{{ end }}{{ $last }}", "{{ range $i, $_ := .msgs }}{{ if eq (len (slice $.msgs $i)) 1 }}last {{ end }}{{ end }}", "{{ .msgs }}", "{{ range .msgs }}{{ range . }}{{ . }},{{ end }}{{ end }}", "{{ range .l }}{{ with . }}{{ . }}{{ else }}-{{ end }}{{ end }}", "{{ range $k, $v := .m.deep }}{{ $k }}{{ range $v }}{{ . }}{{ end }}{{ end }}",
}

func main() {
	var v any
	if err := json.Unmarshal([]byte(data), &v); err != nil {
		panic(err)
	}
	enc := json.NewEncoder(os.Stdout)
	enc.SetEscapeHTML(false)
	enc.Encode(map[string]any{"data": v})
	for _, text := range templates {
		row := map[string]any{"template": text}
		t, err := template.New("").Option("missingkey=zero").Parse(text)
		if err != nil {
			row["parse_error"] = err.Error()
			enc.Encode(row)
			continue
		}
		var out bytes.Buffer
		if err := t.Execute(&out, v); err != nil {
			row["error"] = err.Error()
		}
		row["out"] = out.String()
		enc.Encode(row)
	}
	fmt.Fprintln(os.Stderr, len(templates), "templates")
}
