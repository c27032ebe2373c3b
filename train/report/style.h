// The style sheet of a page. Curve colours differ in lightness too and have a contrast of 3:1 with
// their background, light and dark (WCAG 2, 1.4.11). Those of the light page are darker variants of
// Okabe and Ito's palette for colour-blind readers.
#pragma once

namespace shoal::report {

inline constexpr const char* kStyle = R"(
:root{color-scheme:light dark;--bg:#f5f6f8;--card:#fff;--ink:#18202c;--soft:#566173;--line:#dfe4ea;
--grid:#e8ecf1;--hover:#18202c14;--good:#00704f;--warn:#8a4b00;--warnbg:#fff4e0;
--s0:#0067a8;--s1:#cf5300;--s2:#008560;--s3:#a8478a;--s4:#8f7000;--s5:#5a54c7;--s6:#7d8896;--s7:#8b95a3}
@media (prefers-color-scheme:dark){:root{--bg:#0e1217;--card:#161c24;--ink:#e6ebf2;--soft:#9aa7b8;
--line:#29323e;--grid:#222b36;--hover:#ffffff1c;--good:#4fd3a5;--warn:#ffc069;--warnbg:#33260f;
--s0:#58b2f0;--s1:#ff8d4a;--s2:#35c998;--s3:#e58fca;--s4:#dcbb43;--s5:#a7a3ff;--s6:#76828f;--s7:#7f8b9a}}
@media print{:root{color-scheme:light;--bg:#fff;--card:#fff;--ink:#000;--soft:#444;--line:#bbb;
--grid:#e2e2e2;--good:#00573d;--warn:#6b3a00;--warnbg:#fff;
--s0:#0067a8;--s1:#cf5300;--s2:#008560;--s3:#a8478a;--s4:#8f7000;--s5:#5a54c7;--s6:#7d8896;--s7:#8b95a3}}
*{box-sizing:border-box}
body{margin:0;background:var(--bg);color:var(--ink);font:15px/1.5 system-ui,-apple-system,
"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif;font-variant-numeric:tabular-nums;
overflow-wrap:break-word}
main{max-width:1200px;margin:0 auto;padding:28px 20px 40px}
header{margin-bottom:20px}
.mark{color:var(--soft);font-size:13px;letter-spacing:.04em;margin:0}
h1{font-size:28px;line-height:1.2;margin:2px 0 6px;letter-spacing:-.01em}
h2{font-size:19px;margin:34px 0 12px;letter-spacing:-.005em}
h3{font-size:15px;margin:0;font-weight:650}
.sub{margin:2px 0;color:var(--soft)}
.state{display:inline-block;white-space:nowrap;padding:1px 10px;border-radius:999px;border:1px solid currentColor;
font-size:13px;color:var(--good);margin-right:8px}
.state.open{color:var(--warn)}
.grid{display:grid;grid-template-columns:repeat(2,minmax(0,1fr));gap:16px}
.both{grid-column:1/-1}
.card{background:var(--card);border:1px solid var(--line);border-radius:12px;padding:14px 16px 12px;
margin:0;min-width:0}
figcaption{display:flex;align-items:baseline;gap:8px;margin-bottom:4px}
figcaption span{color:var(--soft);font-size:13px}
.tiles{display:grid;grid-template-columns:repeat(var(--tiles),minmax(0,1fr));gap:12px}
.tile{background:var(--card);border:1px solid var(--line);border-radius:12px;padding:12px 14px}
.tile p{margin:0;color:var(--soft);font-size:13px;line-height:1.35}
.tile b{display:block;font-size:23px;line-height:1.3;font-weight:650;letter-spacing:-.01em}
.legend{list-style:none;display:flex;flex-wrap:wrap;gap:2px 16px;margin:0 0 4px;padding:0;font-size:13px;
color:var(--soft)}
.legend li{display:flex;align-items:center}
.sw{width:12px;height:12px;margin-right:6px;flex:none;vertical-align:-1px}
.sw.l{width:24px}
.plot{display:block;width:100%;height:auto}
.on-narrow,.label{display:none}
.t{font-size:11px;fill:var(--soft)}
.on-wide .t{font-size:12px}
.e{text-anchor:end}.m{text-anchor:middle}
.grid-line,.plot .grid{stroke:var(--grid);stroke-width:1;fill:none}
.axis{stroke:var(--soft);stroke-width:1;fill:none;opacity:.6}
.c{fill:none;stroke-width:2;stroke-linejoin:round;stroke-linecap:round}
.pale{stroke-width:1.2;opacity:.32}
.dash{stroke-dasharray:5 4}
.bad{stroke-width:1.6}
.area{stroke:var(--card);stroke-width:.8}
.s{fill:transparent;pointer-events:all}.s:hover{fill:var(--hover)}
.c0{stroke:var(--s0)}.c1{stroke:var(--s1)}.c2{stroke:var(--s2)}.c3{stroke:var(--s3)}
.c4{stroke:var(--s4)}.c5{stroke:var(--s5)}.c6{stroke:var(--s6)}.c7{stroke:var(--s7)}
.f0{fill:var(--s0)}.f1{fill:var(--s1)}.f2{fill:var(--s2)}.f3{fill:var(--s3)}
.f4{fill:var(--s4)}.f5{fill:var(--s5)}.f6{fill:var(--s6)}.f7{fill:var(--s7)}
.bar{display:block;width:100%;min-width:90px;height:16px;border-radius:4px}
.rest{fill:var(--grid)}
.bar rect{stroke:var(--card);stroke-width:1;vector-effect:non-scaling-stroke}
.text td{overflow-wrap:anywhere;min-width:6em;vertical-align:top}.text td:last-child{min-width:15em}
.text td:first-child{overflow-wrap:normal;min-width:9em}.texts td:first-child{min-width:5em}
.bars td:last-child{width:45%}.both .bars td:last-child{width:62%}
.note,.missing{color:var(--soft);font-size:13px;margin:6px 0 0}
.missing{border:1px dashed var(--line);border-radius:10px;padding:8px 14px;margin:10px 0 0}
.remark{background:var(--warnbg);border-left:3px solid var(--warn);border-radius:0 8px 8px 0;
padding:8px 14px;margin:10px 0 0}
.scroll{overflow-x:auto;margin:0 -4px;padding:0 4px}
table{border-collapse:collapse;width:100%;font-size:14px}
th{text-align:left;color:var(--soft);font-weight:600;font-size:13px;vertical-align:bottom}
th,td{padding:5px 14px 5px 0;border-bottom:1px solid var(--line)}
tr:last-child td{border-bottom:0}
th:last-child,td:last-child{padding-right:0}
.n{text-align:right;white-space:nowrap}
.best{font-weight:700;color:var(--good)}
td:first-child{vertical-align:top}
details{margin-top:12px}
summary{cursor:pointer;color:var(--soft);font-size:14px}
code,pre{font:13px/1.5 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace}
pre{white-space:pre-wrap;margin:0}
footer{color:var(--soft);font-size:13px;margin-top:36px}
@media screen and (max-width:1000px){.tiles{grid-template-columns:repeat(4,minmax(0,1fr))}}
@media screen and (max-width:760px){
main{padding:18px 12px 28px}h1{font-size:23px}
.grid{grid-template-columns:minmax(0,1fr);gap:12px}
.tiles{grid-template-columns:repeat(2,minmax(0,1fr));gap:10px}
.tile:last-child:nth-child(odd){grid-column:1/-1}
.tile b{font-size:19px}.card{padding:12px 12px 10px}
.bars td:last-child,.both .bars td:last-child{width:30%}
.text td:last-child{min-width:8em}.text td:first-child code{font-size:12px}
.runs thead{display:none}.runs tr,.runs td{display:block}.runs td{border:0;padding:1px 0}
.runs tr+tr{border-top:1px solid var(--line);margin-top:8px;padding-top:8px}.label{display:inline}
.numbers{font-size:12.5px}.numbers th{font-size:12px}
.on-wide{display:none}.on-narrow{display:block}
.t{font-size:15px}.c{stroke-width:2.4}.pale{stroke-width:1.4}
th,td{padding-right:10px}.numbers th,.numbers td{padding-right:5px}}
@media print{
@page{margin:14mm}
body{font-size:10.5pt}main{max-width:none;padding:0}
.card,.tile{break-inside:avoid}h2{break-after:avoid}
.grid{gap:8px}.card,.tile{padding:8px 10px}.t{font-size:13px}.on-wide .t{font-size:17px}
.tile b{font-size:14pt}h2{margin:18px 0 8px}
details:not([open]){display:none}
.scroll{overflow:visible}}
)";

}  // namespace shoal::report
