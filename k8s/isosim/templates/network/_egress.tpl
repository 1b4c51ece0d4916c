{{- define "isosim.dns" -}}
# 53, and 5353 where a Service passes requests on to that port of its pods (OpenShift).
- ports: [{port: 53, protocol: UDP}, {port: 53, protocol: TCP}, {port: 5353, protocol: UDP}, {port: 5353, protocol: TCP}]
  to: {{- toYaml .Values.networkPolicy.dns | nindent 4 }}
{{- end }}

{{- define "isosim.bucketEgress" -}}
- ports: [{port: {{ .Values.networkPolicy.bucket.port }}, protocol: TCP}]
  to: {{- toYaml .Values.networkPolicy.bucket.peers | nindent 4 }}
{{- end }}

{{/* Peers that API and workers may reach: DNS, Redis, a bucket (of the store, or with the backups that they restore), a remote encoder, and those that the operator adds. */}}
{{- define "isosim.egress" -}}
{{ include "isosim.dns" . }}
{{- if eq .Values.redis.mode "own" }}
- ports: [{port: redis, protocol: TCP}]
  to:
    - podSelector:
        matchLabels:
          {{- include "isosim.selector" . | nindent 10 }}
          app.kubernetes.io/component: redis
{{- else if eq .Values.redis.mode "external" }}
- ports: [{port: {{ .Values.networkPolicy.redis.port }}, protocol: TCP}]
  to: {{- toYaml .Values.networkPolicy.redis.peers | nindent 4 }}
{{- end }}
{{- if include "isosim.bucket" . }}
{{ include "isosim.bucketEgress" . }}
{{- end }}
{{- if .Values.remoteEncoder.url }}
- ports: [{port: {{ .Values.networkPolicy.remoteEncoder.port }}, protocol: TCP}]
  to: {{- toYaml .Values.networkPolicy.remoteEncoder.peers | nindent 4 }}
{{- end }}
{{- with .Values.networkPolicy.extraEgress }}
{{ toYaml . }}
{{- end }}
{{- end }}
