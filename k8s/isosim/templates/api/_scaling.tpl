{{/* Up at once and by no more than doubling; down slowly, one at a time: a new pod begins with an empty cache. */}}
{{- define "isosim.scaling" -}}
scaleUp:
  stabilizationWindowSeconds: 0
  policies:
    - {type: Percent, value: 100, periodSeconds: 60}
    - {type: Pods, value: 2, periodSeconds: 60}
  selectPolicy: Max
scaleDown:
  stabilizationWindowSeconds: {{ .Values.autoscaling.scaleDownAfter }}
  policies:
    - {type: Pods, value: 1, periodSeconds: 60}
{{- end }}
