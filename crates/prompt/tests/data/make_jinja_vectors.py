"""Makes jinja-vectors.jsonl: many small templates rendered by Jinja2 with the settings of transformers.

    python3 make_jinja_vectors.py > jinja-vectors.jsonl        (made with jinja2 3.1.6)
"""
import json
import sys
from datetime import datetime

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

DATA = {
    "s": "Hello, World", "e": "", "u": "né<b>&\"'日本 ", "ws": "  a b\t\n", "n": 7, "z": 0, "f": 2.5, "neg": -3, "big": 10**15, "t": True, "no": False, "nil": None,
    "l": [3, 1, 2], "mixed": [1, "a", None, True, 2.0], "empty": [], "d": {"b": 1, "a": "x", "C": None}, "ed": {}, "words": ["banana", "Apple", "cherry", "apple"],
    "msgs": [{"role": "system", "content": "S"}, {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "", "n": 2}, {"role": "user", "content": "Bye", "tags": ["x", "y"]}],
    "nested": {"a": {"b": [{"c": 5}]}}, "lines": "one\ntwo\n\nthree\n",
}

T = r'''
{{ s[0] }}{{ s[-1] }}{{ s[99] is defined }}{{ s[1:4] }}{{ s[::-1] }}{{ s[::2] }}{{ s[-5:-2] }}{{ s[5:2] }}{{ s[5:2:-1] }}{{ s[:100] }}{{ u[0:3] }}{{ u[-2] }}
{{ l[0] }}{{ l[-1] }}{{ l[7] }}{{ l[1:] }}{{ l[::-1] }}{{ l[:-1] }}{{ l[5:] }}{{ l['x'] }}{{ l[1.0] is defined }}{{ l[true] }}
{{ (1,2,3)[1:] }}{{ (1,) }}{{ () }}{{ (1,2)[0] }}{{ 1, 2 }}{{ [1,] }}{{ {'a':1,} }}
{{ s[::0] }}
{{ s['x':] }}
{{ n[0] }}
{{ n[1:] }}
{{ nil.x }}|{{ nil['x'] }}
{{ d.a }}{{ d['b'] }}{{ d.zz }}{{ d['zz'] }}{{ d.get('a') }}{{ d.get('q', 5) }}{{ d.C }}{{ d.items() }}{{ d.keys() }}{{ d.values() }}{{ d.items()|list|length }}
{{ d.zz.y }}
{{ d['zz']['y'] }}
{{ nested.a.b[0].c }}{{ nested['a']['b'][0]['c'] }}{{ nested.a.b.0.c }}
{{ d.items }}
{{ d|items|list }}{{ nope|items|list }}
{{ n|items }}
{{ 1 + 2 * 3 - 4 / 2 }} {{ 7 // 2 }} {{ -7 // 2 }} {{ 7 % 3 }} {{ -7 % 3 }} {{ 7 % -3 }} {{ 2 ** 3 }} {{ 2 ** -1 }} {{ 2 ** 3 ** 2 }} {{ -2 ** 2 }} {{ 1.5 + 1 }} {{ 7.5 // 2 }} {{ 7.5 % 2 }} {{ -7.5 % 2 }} {{ true + 1 }} {{ 10 / 5 }}
{{ 1 // 0 }}
{{ 1 % 0 }}
{{ 1.0 // 0 }}
{{ 'a' * 3 }}{{ 2 * 'b' }}{{ [1] * 2 }}{{ 'a' * -1 }}{{ [1] + [2] }}{{ (1,) + (2,) }}{{ 'a' * true }}
{{ 'a' * 'b' }}
{{ 'a' * 1.5 }}
{{ [1] + (2,) }}
{{ 'a' - 'b' }}
{{ none + 1 }}
{{ {} + {} }}
{{ -'a' }}
{{ +'a' }}
{{ not s }} {{ not e }} {{ not not s }} {{ not n == 7 }} {{ s and n }} {{ e or 'd' }} {{ e and n }} {{ nil or e or z }} {{ s or nope.x }}
{{ 1 < 2 < 3 }} {{ 1 < 3 < 2 }} {{ 1 == 1.0 }} {{ true == 1 }} {{ 'a' < 'b' }} {{ [1,2] < [1,3] }} {{ (1,2) == (1,2) }} {{ [1] == (1,) }} {{ {'a':1} == {'a':1.0} }} {{ none == none }} {{ nope == nope2 }} {{ 'a' != 'b' }} {{ 1 == '1' }}
{{ 1 < 'a' }}
{{ none < 1 }}
{{ [1] < ['a'] }}
{{ nope < 1 }}
{{ 'ell' in s }} {{ 'x' in s }} {{ '' in s }} {{ 1 in l }} {{ 1.0 in l }} {{ 'a' in d }} {{ 'x' in d }} {{ 'a' not in d }} {{ 1 in (1,2) }} {{ 'x' in d.values() }} {{ ('a','x') in d.items() }} {{ 1 in nope }}
{{ 1 in 'abc' }}
{{ 1 in 5 }}
{{ [] in d }}
{{ 'a' ~ 1 ~ 2.0 ~ none ~ true ~ [1] ~ nope }} {{ 1 ~ 2 }} {{ 'a' ~ 'b' * 2 }} {{ 1 + 2 ~ 3 + 4 }}
{{ 'y' if n else 'n' }}{{ 'y' if z }}{{ 'a' if z else 'b' if n else 'c' }}{{ ('x' if z) is defined }}
{{ 1.0 }} {{ 1e3 }} {{ 1e16 }} {{ 123456789012345678.0 }} {{ 1e-5 }} {{ 0.0001 }} {{ 0.1 + 0.2 }} {{ 1/3 }} {{ 1e300 * 1e10 }} {{ -0.0 }} {{ 5e-324 }} {{ 100000000000000000000 }} {{ 1_000 }} {{ 0x1F }} {{ 0b11 }} {{ 0o17 }} {{ 1.5e+3 }}
{{ [1.0, 'a\'b', "q\"q", 'b\\n', '\n\t\x01', 'é', none, true, (1,), {'k': {}}] }} {{ ['\u200b', '\x7f', '\xa0'] }}
{{ "a" "b" 'c' }} {{ 'tab\there' }} {{ '\q' }} {{ '\101' }} {{ '\
x' }}
{{ s.upper() }} {{ s.lower() }} {{ s.title() }} {{ s.capitalize() }} {{ s.swapcase() }} {{ 'éa'.upper() }} {{ 'ß'.upper() }} {{ "they're bill's".title() }}
{{ ws.strip()|tojson }} {{ ws.lstrip()|tojson }} {{ ws.rstrip()|tojson }} {{ 'xxaxx'.strip('x') }} {{ 'abcba'.lstrip('ab') }} {{ 'a'.strip(none) }}
{{ 'a,b,,c'.split(',') }} {{ ' a  b '.split() }} {{ 'a b c d'.split(none, 2) }} {{ 'a,b,c'.split(',', 1) }} {{ 'a,b,c'.rsplit(',', 1) }} {{ ' a b  c '.rsplit(none, 1) }} {{ ''.split() }} {{ ''.split(',') }} {{ 'abc'.split('bc') }} {{ 'a b  c '.split(maxsplit=1) }} {{ 'aXbX'.split('X') }}
{{ 'a'.split('') }}
{{ lines.splitlines() }} {{ lines.splitlines(true) }} {{ 'a\r\nb\rc'.splitlines() }} {{ ''.splitlines() }} {{ '\n'.splitlines() }}
{{ 'aXbXc'.replace('X', '-') }} {{ 'aXbXc'.replace('X', '-', 1) }} {{ 'abc'.replace('', '-') }} {{ 'abc'.replace('', '-', 2) }} {{ 'abc'.replace('x', 'y') }}
{{ 'abc'.startswith('a') }} {{ 'abc'.startswith(('x', 'a')) }} {{ 'abc'.endswith('bc') }} {{ 'abc'.startswith('b', 1) }} {{ 'abc'.endswith('b', 0, 2) }}
{{ 'abc'.startswith(1) }}
{{ 'abcabc'.find('c') }} {{ 'abcabc'.rfind('c') }} {{ 'abc'.find('x') }} {{ 'abcabc'.index('b', 2) }} {{ 'éab'.find('b') }} {{ 'abcabc'.count('bc') }} {{ 'aaa'.count('') }} {{ 'abcabc'.find('c', 3) }}
{{ 'abc'.index('x') }}
{{ ', '.join(['a', 'b']) }} {{ ''.join('abc') }} {{ '-'.join(d) }} {{ '-'.join([]) }}
{{ ','.join([1]) }}
{{ 'a=b=c'.partition('=') }} {{ 'a=b=c'.rpartition('=') }} {{ 'abc'.partition('=') }} {{ 'abc'.rpartition('=') }}
{{ 'abc'.isdigit() }} {{ '12'.isdigit() }} {{ ''.isdigit() }} {{ 'a1'.isalnum() }} {{ 'ab'.isalpha() }} {{ ' \n'.isspace() }} {{ 'Ab Cd'.istitle() }} {{ 'ABC1'.isupper() }} {{ 'abc1'.islower() }} {{ '1'.islower() }} {{ 'a_1'.isidentifier() }} {{ 'a'.isascii() }}
{{ 'ab'.ljust(4, '.') }}{{ 'ab'.rjust(4) }}{{ 'ab'.center(5, '*') }}{{ 'ab'.center(4, '*') }}{{ 'abc'.center(6, '*') }}{{ '-5'.zfill(4) }}{{ '5'.zfill(3) }}{{ 'abc'.zfill(2) }}{{ 'a\tb'.expandtabs(4) }}
{{ 'pre-x-post'.removeprefix('pre-').removesuffix('-post') }} {{ 'abc'.casefold() }} {{ 'abc'.removeprefix('x') }}
{{ '{}-{}'.format(1, 'a') }} {{ '{0}{1}{0}'.format('a', 'b') }} {{ '{x}'.format(x=5) }} {{ '{{}}'.format() }} {{ '{:>5}|{:<5}|{:^5}|{:05d}|{:.2f}|{:,}|{:x}|{:+d}|{:e}|{:%}'.format('a', 'b', 'c', 42, 1.005, 1234567, 255, 5, 12345.678, 0.25) }} {{ '{!r}'.format('a') }} {{ '{:*^7}'.format('ab') }} {{ '{0[1]} {1[a]}'.format([1, 2], {'a': 3}) }} {{ '{:5}|{:5}'.format(1, 'a') }} {{ '{:.3}'.format('abcdef') }} {{ '{}'.format(none) }} {{ '{:g} {:g}'.format(1e10, 0.5) }}
{{ '{}'.format() }}
{{ '{x}'.format() }}
{{ '{:d}'.format('a') }}
{{ '%s %d %5.2f %r %x %05d %-5s| %+d %% %c %e %g' % ('a', 3.9, 1.005, 'q', 255, 42, 'ab', 5, 'z', 12345.678, 0.0001) }} {{ '%s' % 'x' }} {{ '%s' % [1] }} {{ '%(a)s-%(b)05.1f' % {'a': 1, 'b': 2} }} {{ '%.2s|%5s|%i' % ('abc', 'x', 7) }} {{ '%s' % none }} {{ 'x' % () }} {{ '%o %X %#x' % (8, 255, 255) }} {{ '%*d' % (5, 3) }} {{ '%3d|%-3d|% d' % (5, 5, 5) }}
{{ '%s' % (1, 2) }}
{{ '%s %s' % 'a' }}
{{ '%d' % 'a' }}
{{ '%z' % 1 }}
{{ '%(a)s' % 1 }}
{{ 'a' % 1 }}
{{ l.index(1) }} {{ l.count(3) }} {{ (1,1).count(1) }} {{ l.copy() }} {{ d.copy() }}
{{ l.index(99) }}
{{ l.append(1) }}
{{ l.sort() }}
{{ d.update({}) }}
{{ d.setdefault('a', 1) }}
{{ d.pop }}|{{ d.pop is defined }}
{{ s.foo }}|{{ s.foo() }}
{{ s.__class__ }}|{{ s.__class__.__name__ }}
{{ s() }}
{{ nope() }}
{{ nope }}|{{ nope|length }}|{{ nope|string }}|{{ nope|list }}|{{ nope|join }}|{{ nope|default('d') }}|{% for x in nope %}x{% else %}e{% endfor %}|{{ nope is iterable }}|{{ nope is string }}
{{ nope.x }}
{{ nope['x'] }}
{{ nope + 1 }}
{{ -nope }}
{{ l|sort }}{{ l|sort(reverse=true) }}{{ words|sort }}{{ words|sort(case_sensitive=true) }}{{ msgs|sort(attribute='role')|map(attribute='content')|list }}{{ msgs|sort(attribute='role,content')|map(attribute='content')|list }}{{ 'cba'|sort }}{{ d|sort }}
{{ mixed|sort }}
{{ words|unique|list }}{{ words|unique(case_sensitive=true)|list }}{{ msgs|unique(attribute='role')|map(attribute='role')|list }}{{ [1,1.0,true]|unique|list }}
{{ l|min }}{{ l|max }}{{ words|min }}{{ words|max }}{{ msgs|max(attribute='content') }}{{ empty|min is defined }}
{{ l|sum }} {{ l|sum(start=10) }} {{ [1.5, 2]|sum }} {{ [{'v':1},{'v':2}]|sum(attribute='v') }} {{ []|sum }}
{{ ['a']|sum }}
{{ l|first }}{{ l|last }}{{ 'abc'|first }}{{ 'abc'|last }}{{ d|first }}{{ empty|first }}{{ empty|first is defined }}{{ d|last }}
{{ l|join('-') }} {{ l|join }} {{ msgs|join(', ', attribute='role') }} {{ 'abc'|join('.') }} {{ d|join }} {{ mixed|join('/') }} {{ [nope]|join }}
{{ l|reverse|list }} {{ 'abc'|reverse }} {{ l|reverse }}
{{ n|reverse }}
{{ [1,2,3,4,5]|batch(2)|list }} {{ [1,2,3,4,5]|batch(2, 'x')|list }} {{ [1,2,3,4,5]|slice(2)|list }} {{ [1,2,3,4,5]|slice(3)|list }} {{ [1,2,3,4,5]|slice(3, 'x')|list }} {{ [1,2,3,4]|slice(2, 'x')|list }}
{{ msgs|map(attribute='role')|list }} {{ ['a','b']|map('upper')|list }} {{ [1.5,2.5]|map('round')|list }} {{ msgs|map(attribute='n', default=0)|list }} {{ [' a ']|map('trim')|list }} {{ [[1,2],[3]]|map('join', '-')|list }} {{ msgs|map(attribute='tags.0')|list }} {{ ['a']|map('replace', 'a', 'b')|list }}
{{ l|map('nofilter')|list }}
{{ l|map }}{{ l|map(attribute='x')|list }}
{{ l|select('odd')|list }} {{ l|reject('odd')|list }} {{ mixed|select|list }} {{ mixed|reject|list }} {{ l|select('gt', 1)|list }} {{ l|select('in', [1,2])|list }} {{ mixed|select('string')|list }} {{ l|select('divisibleby', 3)|list }}
{{ msgs|selectattr('role','equalto','user')|list|length }} {{ msgs|selectattr('n')|list }} {{ msgs|selectattr('n','defined')|list|length }} {{ msgs|rejectattr('content')|list|length }} {{ msgs|selectattr('role','in',['user','system'])|map(attribute='content')|list }} {{ msgs|selectattr('role','==','user')|first }}
{{ none|selectattr('a')|list }} {{ none|map('upper')|list }}
{{ none|list }}
{% for r, g in msgs|groupby('role') %}{{ r }}={{ g|length }} {% endfor %}{% for g in msgs|groupby('role') %}{{ g.grouper }}{{ g.list|length }}{% endfor %}{{ msgs|groupby('n', default=9)|length }}
{{ d|dictsort }} {{ {'b':2,'a':3}|dictsort(by='value') }} {{ {'b':2,'a':3}|dictsort(reverse=true) }} {{ {'B':1,'a':2}|dictsort(true) }}
{{ l|dictsort }}
{{ 5|default(1) }}{{ nil|default('d') }}{{ nil|default('d', true) }}{{ e|d('x') }}{{ e|d('x', boolean=true) }}{{ nope|d }}
{{ -5|abs }} {{ -2.5|abs }} {{ true|abs }}
{{ 'a'|abs }}
{{ 2.5|round }} {{ 3.5|round }} {{ 2.567|round(2) }} {{ 2.5|round(0, 'ceil') }} {{ 2.567|round(1, 'floor') }} {{ 7|round }} {{ 1234|round(-2) }} {{ 1250|round(-2) }} {{ 1.005|round(2) }} {{ 2.675|round(2) }} {{ 1e20|round }}
{{ 1|round(1, 'x') }}
{{ '42'|int }} {{ '4.7'|int }} {{ 'x'|int }} {{ 'x'|int(5) }} {{ 4.9|int }} {{ -4.9|int }} {{ nil|int }} {{ '0x1f'|int(0, 16) }} {{ 'ff'|int(base=16) }} {{ true|int }} {{ ' 7 '|int }} {{ '1_000'|int }} {{ '1e3'|int }}
{{ '4.7'|float }} {{ 'x'|float }} {{ 'x'|float(1.5) }} {{ 3|float }} {{ nil|float }} {{ '1e3'|float }} {{ 'inf'|float }} {{ 'nan'|float }}
{{ s|length }} {{ l|count }} {{ d|length }} {{ u|length }} {{ ()|length }} {{ range(3)|length }} {{ d.items()|length }}
{{ n|length }}
{{ nil|length }}
{{ l|map('string')|length }}
{{ 'a b-c (d'|title }} {{ 'HELLO wORLD'|capitalize }} {{ 'Ab'|upper }} {{ 'Ab'|lower }} {{ 5|upper }} {{ nil|string|length }} {{ "it's"|title }}
{{ ws|trim|tojson }} {{ 'xxax'|trim('x') }} {{ 5|trim }} {{ lines|trim|tojson }}
{{ 'aXbX'|replace('X', '-') }} {{ 'aXbX'|replace('X', '-', 1) }} {{ 5|replace('5', 'x') }} {{ 'a'|replace('a', 5) }}
{{ 'ab'|center(6)|tojson }} {{ 'abc'|center(6)|tojson }} {{ 'ab'|center(7)|tojson }}
{{ lines|indent|tojson }} {{ lines|indent(2)|tojson }} {{ lines|indent(2, true)|tojson }} {{ lines|indent(2, blank=true)|tojson }} {{ lines|indent('> ')|tojson }} {{ 'a'|indent(4, first=true)|tojson }} {{ ''|indent(2, true)|tojson }}
{{ 'hello world foo bar'|truncate(11) }} {{ 'hello world foo bar'|truncate(11, true) }} {{ 'hello world foo bar'|truncate(11, false, '..') }} {{ 'hello world foo bar'|truncate(11, leeway=0) }} {{ 'short'|truncate(3) }} {{ 'helloworldfoobar'|truncate(8) }}
{{ 'a b, c_d 1'|wordcount }} {{ ''|wordcount }}
{{ '<a href="x">&\'</a>'|escape }} {{ '<b>'|e }} {{ 5|e }} {{ '<b>x</b>  y'|striptags }} {{ '<!-- c -->a'|striptags }}
{{ 'a b/c?d=é&'|urlencode }} {{ {'a b': 'c/d', 'e': 1}|urlencode }} {{ [('a', 1)]|urlencode }} {{ 5|urlencode }}
{{ 0|filesizeformat }} {{ 1|filesizeformat }} {{ 999|filesizeformat }} {{ 1000|filesizeformat }} {{ 1500000|filesizeformat }} {{ 1024|filesizeformat(true) }} {{ 1048576|filesizeformat(binary=true) }}
{{ '%s|%s'|format('a', 1) }} {{ '%(a)s'|format(a=1) }} {{ '%d'|format(3) }}
{{ 'a'|attr('upper') is callable }} {{ d|attr('a') is defined }} {{ 'a'|attr('nope') is defined }}
{{ mixed|string }} {{ mixed|pprint }} {{ 'a'|pprint }} {{ 'a'|safe }} {{ 'abc'|list }} {{ d|list }} {{ d|string }}
{{ mixed|tojson }} {{ d|tojson(indent=2) }} {{ d|tojson(sort_keys=true) }} {{ u|tojson }} {{ u|tojson(ensure_ascii=true) }} {{ '😀'|tojson(ensure_ascii=true) }} {{ d|tojson(separators=(',', ':')) }} {{ d|tojson(indent='--') }} {{ [[], {}, [1]]|tojson(indent=1) }} {{ (1,2)|tojson }} {{ {1: 2, none: 3, true: 4, 1.5: 5}|tojson }} {{ 1e16|tojson }} {{ '\x00\x1f\x7f</'|tojson }} {{ [1]|tojson(indent=0) }} {{ 'inf'|float|tojson }}
{{ nope|tojson }}
{{ range(3)|tojson }}
{{ d.items()|tojson }}
{{ l|map('string')|tojson }}
{{ {(1,2): 3}|tojson }}
{{ x|nofilter }}
{{ x is notest }}
{{ 5 is divisibleby 5 }} {{ 5 is odd }} {{ 4 is even }} {{ 5 is number }} {{ 5.0 is float }} {{ 5 is integer }} {{ true is integer }} {{ true is number }} {{ 'a' is string }} {{ l is sequence }} {{ d is sequence }} {{ d is mapping }} {{ 'a' is iterable }} {{ 5 is iterable }} {{ nil is none }} {{ nope is undefined }} {{ s is defined }} {{ range is callable }} {{ s.upper is callable }} {{ 'a' is lower }} {{ 'A' is upper }} {{ 'Aa' is upper }} {{ '1' is lower }} {{ 5 is in [5] }} {{ 5 is not in [5] }} {{ 5 is eq 5 }} {{ 5 is ne(4) }} {{ 5 is gt 4 }} {{ 5 is le 5 }} {{ 5 is lessthan 6 }} {{ true is true }} {{ 1 is true }} {{ false is false }} {{ true is boolean }} {{ nil is sameas none }} {{ 'x' is escaped }} {{ 'upper' is filter }} {{ 'odd' is test }} {{ range(3) is sequence }} {{ d.items() is sequence }} {{ d.items() is iterable }} {{ l|map('string') is iterable }} {{ l|map('string') is sequence }} {{ nil is iterable }} {{ nope is sequence }} {{ nope is mapping }} {{ nope is none }}
{{ 'a' is odd }}
{{ x is divisibleby }}
{{ not x is defined }} {{ x is defined and y }} {{ 5 is odd and 4 is even }} {{ (5 is odd) == true }} {{ 5 is odd == true }}
{{ range(3)|list }} {{ range(1, 7, 2)|list }} {{ range(5, 0, -2)|list }} {{ range(0)|list }} {{ range(3) }} {{ range(1, 2, 3) }} {{ range(3)[1] }} {{ 2 in range(3) }} {{ range(5)[1:3]|list }} {{ range(3)|sum }} {{ range(5)|last }}
{{ range(1, 2, 0) }}
{{ range(1000000) }}
{{ range('a') }}
{{ dict(a=1) }} {{ dict({'a': 1}, b=2) }} {{ dict([('a', 1)]) }} {{ dict() }}
{% set ns = namespace(a=1) %}{% set ns.b = 2 %}{{ ns.a }}{{ ns.b }}{{ ns.c }}{{ ns.a is defined }}{{ ns.c is defined }}{{ ns['a'] }}
{% set ns = namespace({'a': 1}, b=2) %}{{ ns.a + ns.b }}
{% set x.y = 1 %}
{% set d.y = 1 %}
{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{{ c.next() }}{{ c.current }}{{ c.reset() }}{{ c.next() }}
{% set j = joiner() %}{{ j() }}a{{ j() }}b{{ j() }}c
{{ cycler() }}
{% for x in l %}{{ loop.index }}/{{ loop.length }} {{ loop.first }} {{ loop.last }} {{ loop.revindex }} {{ loop.previtem }} {{ loop.nextitem }} {{ loop.cycle('a','b') }} {{ loop.changed(x > 1) }};{% endfor %}
{% for x in l %}{{ loop.depth }}{{ loop.depth0 }}{% for y in l %}{{ loop.depth }}{{ loop.index }}{% endfor %}{{ loop.index }};{% endfor %}
{% for k, v in d.items() %}{{ k }}{{ v }};{% endfor %}{% for k in d %}{{ k }}{% endfor %}{% for (a, b) in [(1,2),(3,4)] %}{{ a+b }}{% endfor %}{% for a, (b, c) in [(1,(2,3))] %}{{ a }}{{ b }}{{ c }}{% endfor %}{% for c in 'abc' %}{{ c }}.{% endfor %}
{% for a, b in [1] %}{% endfor %}
{% for a, b in [(1,2,3)] %}{% endfor %}
{% for a, b in [(1,)] %}{% endfor %}
{% for x in 5 %}{% endfor %}
{% for x in none %}{% endfor %}
{% for x in l if x > 1 %}{{ loop.index }}:{{ x }} {% else %}none{% endfor %}{% for x in l if x > 9 %}x{% else %}none{% endfor %}
{% for x in l %}{% if x == 1 %}{% continue %}{% endif %}{{ x }}{% endfor %}|{% for x in l %}{% if x == 1 %}{% break %}{% endif %}{{ x }}{% endfor %}|{% for x in l %}{% for y in l %}{% if y == 1 %}{% break %}{% endif %}{{ x }}{{ y }} {% endfor %}{% endfor %}
{% for x in [[1,[2,[3]]]] recursive %}{% if x is iterable %}({{ loop(x) }}){% else %}{{ x }}{{ loop.depth }}{% endif %}{% endfor %}
{% for x in l %}{{ loop(l) }}{% endfor %}
{% set x = 1 %}{% for i in l %}{% set x = i %}{% endfor %}{{ x }}{% if true %}{% set x = 9 %}{% endif %}{{ x }}{% with %}{% set x = 5 %}{% endwith %}{{ x }}{% for i in [1] %}{{ x }}{% set x = 7 %}{{ x }}{% endfor %}{{ x }}
{% set a, b = 1, 2 %}{{ a }}{{ b }}{% set (a, b) = (b, a) %}{{ a }}{{ b }}{% set c = 1, 2 %}{{ c }}{% set x = y = 1 %}
{% set x %}a{{ n }}{% endset %}{{ x }}{% set x | upper | replace('A','B') %}a{% endset %}{{ x }}{% set x %}{% set inner = 1 %}{% endset %}{{ inner is defined }}
{% with a = 1, b = a %}{{ a }}{{ b }}{% endwith %}{% with %}{% set q = 1 %}{{ q }}{% endwith %}{{ q is defined }}
{% filter upper %}abc{{ s }}{% endfilter %}{% filter replace('a', 'b') | upper %}aa{% endfilter %}
{% macro m(a, b=2, c=a) %}[{{ a }},{{ b }},{{ c }}]{% endmacro %}{{ m(1) }}{{ m(1, 5) }}{{ m(1, c=3) }}{{ m(b=1, a=2) }}{{ m() }}{{ m.name }}
{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, 2) }}
{% macro m(a) %}{{ a }}{% endmacro %}{{ m(b=2) }}
{% macro m(a) %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, x=3) }}{{ m() }}
{% macro m() %}{{ caller() }}{% endmacro %}{% call m() %}body{% endcall %}{% macro w(n) %}{{ caller(n, k='v') }}{% endmacro %}{% call(x, k) w(5) %}{{ x }}{{ k }}{% endcall %}
{% macro m() %}{{ x }}{% endmacro %}{% set x = 1 %}{{ m() }}{% for x in [7] %}{{ m() }}{% endfor %}
{% macro a(n) %}{% if n %}{{ n }}{{ a(n - 1) }}{% endif %}{% endmacro %}{{ a(3) }}
{% for i in [1,2] %}{% macro q() %}{{ i }}{% endmacro %}{{ q() }}{% endfor %}
{% macro m(x) %}{% set y = x %}{{ y }}{% endmacro %}{{ m(1) }}{{ y is defined }}
{% macro m(*a) %}{% endmacro %}
{% macro m(a=1, b) %}{% endmacro %}
{{ m(*[1,2]) }}{% macro m(a, b) %}{{ a }}{{ b }}{% endmacro %}
{% macro m(a, b) %}{{ a }}{{ b }}{% endmacro %}{{ m(*[1,2]) }}{{ m(**{'a': 3, 'b': 4}) }}{{ m(1, *[2]) }}
{% if n > 5 %}a{% elif n > 3 %}b{% else %}c{% endif %}{% if nope %}x{% endif %}{% if l and d %}y{% endif %}
{% raw %}{{ x }}{% endraw %}{%- raw -%}  {{ y }}  {%- endraw -%}  z
{# c #}a{#- c -#} b {##}c
a
  {% if true %}
    b
  {% endif %}
c
a   {%- if true -%}   b   {%- endif -%}   c
x {{- ' y ' -}} z
  {% set q = 1 %}  x
	{% set q = 1 %}
y
{% if true %}

a{% endif %}
a {#- x #}
b
{{ '{{' }} {{ "}}" }} {{ {'a': {'b': 1}}['a']['b'] }} {{ '%}' }} {{ {'a':1}}}
{%if true%}a{%endif%}{{n}}{{-n-}}
{% print n %}{% print 1, 2 %}
{% do 1 %}
{% if %}x{% endif %}
{% for x %}{% endfor %}
{% endif %}
{% if 1 %}{% endfor %}
{% for x in l %}{% endif %}
{% set %}
{% macro %}{% endmacro %}
{% unknown %}
{{ }}
{{ 1 + }}
{{ 1 2 }}
{{ (1 }}
{{ [1, 2 }}
{{ 'abc }}
{{ a.1b }}
{{ a. }}
{{ a| }}
{{ a is }}
{{ @ }}
{{ a ? b }}
{{ 1 if }}
{{ f(a=1, 2) }}
{{ f(**{}, a=1) }}
{% block x %}a{{ n }}{% endblock %}{% block y %}b{% endblock y %}
{% autoescape true %}{{ 'a' }}{% endautoescape %}
{% include 'x' %}
{% extends 'x' %}
{% import 'x' as y %}
{% from 'x' import y %}
{% generation %}a
{{ n }}{% endgeneration %}
b
{{ raise_exception('x ' ~ n) }}
{{ raise_exception() }}
{{ strftime_now('%d %b %Y %H:%M:%S %j %A') }}
{{ True }} {{ False }} {{ None }} {{ true and none }} {{ [true, none] }}
{{ n.real }} {{ f.is_integer() }}
{{ 'a' 'b' ~ 'c' }} {{ 'a'.upper().lower()[0] }} {{ ('a' ~ 'b').upper() }} {{ ('a')|upper }} {{ -n|abs }} {{ (-n)|abs }} {{ n|string|length }} {{ 'a'|upper ~ 'b' }} {{ 1 + 2|string|length }} {{ not n|string }} {{ n is number|string }}
{{ loop }}
{% for x in l %}{{ loop }}{% endfor %}
{{ range }}
{% macro m() %}{% endmacro %}{{ m }}
{{ msgs[1:]|length }} {{ msgs[-1].content }} {{ msgs[0]['role'] }} {{ (msgs|last).role }} {{ msgs[1:][0]['role'] }} {{ msgs[99].x }}
{{ l[msgs|length - 3] }} {{ msgs[msgs|length - 1].content }} {{ d[('a')] }} {{ [d, d][1].a }} {{ [1,2,3]|length > 2 }} {{ {'a': l}.a|sum }}
{{ '\x1ca\x1f b'.split() }}{{ '\x1c a \x1d'.strip()|length }}{{ '\x1e'.isspace() }}{{ '\x1f a'|trim }}{{ '\u200b'.isspace() }}
{{ '²'.isdigit() }}{{ '²'.isdecimal() }}{{ '½'.isdigit() }}{{ '½'.isnumeric() }}{{ '٣'.isdecimal() }}{{ '一'.isnumeric() }}{{ 'Ⅷ'.isalpha() }}{{ '一1'.isalnum() }}
{{ '٣'|int }}{{ '1__0'|int }}{{ '_1'|int }}{{ '1_000'|int }}{{ '0x1F'|int(0, 0) }}{{ '017'|int(5, 0) }}{{ '12'|int(0, 1) }}{{ '-0x1f'|int(0, 16) }}{{ '٣.٥'|float }}{{ '1_0.5'|float }}{{ '1__0'|float }}
{{ 'ǆx'.capitalize() }}{{ 'ﬁx'|capitalize }}{{ 'ﬁx'|title }}{{ 'ﬁx'.title() }}{{ 'ΑΣ ΑΣ'.title() }}{{ 'ΑΣ'|capitalize }}{{ 'ΑΣ-ΑΣ'|title }}{{ 'გა'.title() }}{{ 'a中b'.title() }}{{ 'ŉa'.title() }}{{ 'ᾀ ᾲ'.title() }}{{ 'ß'.casefold() }}{{ 'Ꭰ ı ς'.casefold() }}
{{ 'é\x7f😀'|tojson(ensure_ascii=true) }}{{ '%a %a' % ('é', '日😀') }}{{ '{!a}'.format('é') }}
{% for a in [1] %}{% break %}{% else %}e{% endfor %}|{% for a in [1, 2] %}{% continue %}{% else %}e{% endfor %}|{% for a in [1, 2] %}{% if a == 1 %}{% continue %}{% endif %}{{ a }}{% else %}e{% endfor %}
{% macro m(a, b=a) %}{{ kwargs }}{% endmacro %}{{ m.arguments }}{{ m.catch_kwargs }}{{ m.catch_varargs }}{{ m.caller }}
{% macro m(a) %}{{ a }}{% endmacro %}{% call m(1) %}x{% endcall %}
{{ '{:>{w}}|{:{}}'.format('a', 'b', 3, w=5) }}{{ '{:_}'.format(1234567) }}{{ '{:_x}'.format(123456789) }}{{ '{:5}|'.format(true) }}{{ '{:{}.{}f}'.format(3.14159, 8, 2) }}
{{ '{:d}'.format(1.5) }}
{{ '{:s}'.format(1) }}
{{ '{:5}'.format(none) }}
{{ '{:5}'.format([1]) }}
{{ '{:{:{}}}'.format(1, 2, 3) }}
{{ 1.0 / 0 }}
{{ 1.0 % 0 }}
{{ 'the quick brown fox jumps over the lazy dog'|wordwrap(10) }}|{{ 'the lazydogsarelongwords dog'|wordwrap(10, true, '|') }}|{{ 'the lazydogsarelongwords dog'|wordwrap(10, false) }}|{{ ''|wordwrap(5) }}|{{ 'a\n\n  b   c  '|wordwrap(3) }}
{{ 'hello-world foo-barbaz\n\nsecond para here'|wordwrap(8) }}|{{ 'hello-world foo-barbaz'|wordwrap(8, break_on_hyphens=false) }}|{{ 'x--y a-b-c well--known e-mail-address -option ---'|wordwrap(6) }}|{{ 'self-contained-thing'|wordwrap(6, wrapstring='/') }}
{{ 'a'|wordwrap(0) }}
{{ {'class': 'a b', 'id': none, 'x': 1, 'y<': '"&'}|xmlattr }}|{{ {'a': '<'}|xmlattr(false) }}|{{ {'a': 1, 'b': 2}|xmlattr(autospace=false) }}|{{ {}|xmlattr }}
{{ {'a b': 1}|xmlattr }}
{{ [5, 5]|random }}{{ []|random }}{{ 'wordwrap' is filter }}{{ 'xmlattr' is filter }}{{ 'random' is filter }}
'''

ENTRIES = []
chunk = []
for line in T.strip("\n").split("\n"):
    ENTRIES.append(line)
# Templates of several lines.
ENTRIES += [
    "a\n  {% if true %}\n    b\n  {% endif %}\nc\n", "a\n\n{% if true %}\n\nb\n{% endif %}\n\n", "\n\nx\n\n", "{% set x %}\n a\n{% endset %}\n[{{ x }}]\n", "{# c #}\nx\n  {# d #}\n y",
    "{% for x in l %}\n  {{ x }}\n{% endfor %}\nend", "{% for x in l -%}\n  {{ x }}\n{%- endfor %}\nend", "{%- for x in l %}\n  {{- x }}\n{%- endfor -%}\nend", "{{ n }}\n{{ n }}\n", "a {%+ if true %} b {%+ endif %}\n c",
    "  {%+ if true %}\nb{% endif %}", "x{% if true +%}\nb{% endif %}", "a\r\nb\r\n{% if true %}\r\nc{% endif %}", "{% raw %}\n  {% a %}\n{% endraw %}\nx", "{{ n -}}\n\n  x", "{{ 'a\nb' }}", "{{ n\n+ n }}", "{%\nif true\n%}x{% endif %}", "\t{% if true %}x{% endif %}\t\n", "{% macro m() %}\n  a\n{% endmacro %}\n{{ m() }}|",
    "{{ x }}\n\n{{ nope.y }}", "a\n{% if 1 %}\nb\n{{ 1/0 }}{% endif %}", "{% if x %}\n{% elif n %}\n a\n{% else %}\n b\n{% endif %}\n", "{% generation %}\na\n{% endgeneration %}\nb", "    {{ n }}\n    {% if n %}y{% endif %}\n", "{{ '\\\nx' }}",
    "a\x1c {%- if 1 %}b{% endif %}", "\x1c{% if 1 %}b{% endif %}", "{%\x1cif 1 %}b{% endif %}",
]


class Generation(Extension):
    tags = {"generation"}

    def parse(self, parser):
        lineno = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.Scope(body, lineno=lineno) if False else body


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def strftime_now(fmt):
    return datetime(2026, 8, 15, 12, 0, 0).strftime(fmt)


env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
env.filters["tojson"] = tojson
env.globals["raise_exception"] = raise_exception
env.globals["strftime_now"] = strftime_now

print(json.dumps({"data": DATA}, ensure_ascii=False))
for text in ENTRIES:
    row = {"template": text}
    try:
        row["out"] = env.from_string(text).render(**DATA)
    except Exception as e:
        row["error"] = str(e)
        row["class"] = type(e).__name__
    print(json.dumps(row, ensure_ascii=False))
print(len(ENTRIES), "templates", file=sys.stderr)
