{{- define "isosim.name" -}}
{{ .Values.nameOverride | default .Chart.Name | trunc 63 | trimSuffix "-" }}
{{- end }}

{{/* Names of release and chart, or of the release alone if it contains the chart's; leaves room for "-worker-" and a pod's suffix. */}}
{{- define "isosim.fullname" -}}
{{- $name := include "isosim.name" . -}}
{{- if .Values.fullnameOverride -}}
{{ .Values.fullnameOverride | trunc 46 | trimSuffix "-" }}
{{- else if contains $name .Release.Name -}}
{{ .Release.Name | trunc 46 | trimSuffix "-" }}
{{- else -}}
{{ printf "%s-%s" .Release.Name $name | trunc 46 | trimSuffix "-" }}
{{- end -}}
{{- end }}

{{/* Labels for selectors: they never change within a release. */}}
{{- define "isosim.selector" -}}
app.kubernetes.io/name: {{ include "isosim.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "isosim.labels" -}}
{{ include "isosim.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Labels and annotations of an object or a pod. Takes a dict: root, and if there are any, component, labels and annotations of
     its own, which replace those of all. */}}
{{- define "isosim.marks" -}}
{{- $component := ternary (dict "app.kubernetes.io/component" .component) dict (hasKey . "component") -}}
labels: {{- mergeOverwrite (include "isosim.labels" .root | fromYaml) (.labels | default dict) $component | toYaml | nindent 2 }}
{{- with mergeOverwrite dict (.root.Values.commonAnnotations | default dict) (.annotations | default dict) }}
annotations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* Takes also the end of the object's name (suffix), or all of it (name). */}}
{{- define "isosim.metadata" -}}
name: {{ .name | default (print (include "isosim.fullname" .root) (.suffix | default "")) }}
namespace: {{ .root.Release.Namespace }}
{{ include "isosim.marks" . }}
{{- end }}

{{- define "isosim.serviceAccount" -}}
{{ .Values.serviceAccount.name | default (ternary (include "isosim.fullname" .) "default" .Values.serviceAccount.create) }}
{{- end }}

{{- define "isosim.claim" -}}
{{ .Values.modelStore.existingClaim | default (printf "%s-model-store" (include "isosim.fullname" .)) }}
{{- end }}

{{/* Takes a dict of root and target (cpu, gpu, worker). */}}
{{- define "isosim.image" -}}
{{- $image := .root.Values.image -}}
{{- with index $image.digests .target -}}
{{ $image.repository }}@{{ . }}
{{- else -}}
{{ $image.repository }}:{{ $image.tag | default .root.Chart.AppVersion }}-{{ .target }}
{{- end -}}
{{- end }}
