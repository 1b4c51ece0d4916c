{{/* Names of all alerts, as a JSON list. */}}
{{- define "isosim.alertNames" -}}
{{- $names := list -}}
{{- range $path, $_ := .Files.Glob "files/alerts*.yaml" -}}
{{- range ($.Files.Get $path | fromYaml).groups -}}
{{- range .rules -}}{{- with .alert -}}{{- $names = append $names . -}}{{- end -}}{{- end -}}
{{- end -}}
{{- end -}}
{{ toJson $names }}
{{- end }}

{{/* A recording rule with the objectives of prometheusRule.slo. Takes the rule and the values. */}}
{{- define "isosim.recordingRule" -}}
{{- $rule := .rule -}}
{{- $of := get .slo (dig "labels" "slo" "" $rule) -}}
{{- if eq $rule.record "isosim:slo_objective:ratio" -}}
{{- $_ := set $rule "expr" (printf "vector(%v)" $of.objective) -}}
{{- else if and (eq $rule.record "isosim:slo_refusals:rate5m") (not .slo.availability.countRefused) -}}
{{- $_ := set $rule "expr" (printf "0 * (%s)" $rule.expr) -}}
{{- else if and (eq $rule.record "isosim:slo_bad_events:rate5m") (hasKey ($of | default dict) "within") -}}
{{- $within := toString $of.within -}}
{{- $bucket := contains "." $within | ternary $within (printf "%s.0" $within) -}}
{{- $expr := regexReplaceAll "le=\"[^\"]*\"" $rule.expr (printf "le=%q" $bucket) -}}
{{- $_ := set $rule "expr" (regexReplaceAll "> bool [0-9.]+" $expr (printf "> bool %s" $within)) -}}
{{- end -}}
{{ toYaml $rule }}
{{- end }}
