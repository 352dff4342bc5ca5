// Package sample answers: what does an HTTP endpoint for batches look like? Its
// [Endpoint] stands where a user's own service would, in the sample deployment: it works
// for a moment on each batch, and may write a history for the judge (package history).
package sample
