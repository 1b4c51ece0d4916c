{{/* Scales up at once, at most doubling; scales down slowly, one pod at a time, because a new pod starts with an empty cache. */}}
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
