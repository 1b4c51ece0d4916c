{{/* Names of all alerts, as a JSON list. */}}
{{- define "isosim.alertNames" -}}
{{- $names := list -}}
{{- range (.Files.Get "files/alerts.yaml" | fromYaml).groups -}}
{{- range .rules -}}{{- with .alert -}}{{- $names = append $names . -}}{{- end -}}{{- end -}}
{{- end -}}
{{ toJson $names }}
{{- end }}
