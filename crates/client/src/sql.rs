//! What the tables of the SDK in users' databases have in common.

use std::sync::Arc;

/// A part of a name. PostgreSQL cuts names at 63 bytes, and those of indexes are made from the table's.
const NAME_PART_MAX: usize = 48;

/// The name of a table, checked, so that it can be put into SQL text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TableName {
    schema: Option<String>,
    table: String,
}

impl TableName {
    /// Letters, digits and `_`, with a schema before a dot if need be.
    pub(crate) fn parse(name: &str) -> Option<TableName> {
        let (schema, table) = match name.split_once('.') {
            Some((schema, table)) => (Some(schema), table),
            None => (None, name),
        };
        let fits = |part: &str| {
            !part.is_empty()
                && part.len() <= NAME_PART_MAX
                && !part.starts_with(|first: char| first.is_ascii_digit())
                && part.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
        };
        (fits(table) && schema.is_none_or(fits))
            .then(|| TableName { schema: schema.map(str::to_owned), table: table.to_owned() })
    }

    /// As it is written in SQL.
    pub(crate) fn quoted(&self) -> String {
        self.beside("")
    }

    /// The name of something that lies in the same schema.
    pub(crate) fn beside(&self, suffix: &str) -> String {
        let schema = self.schema.iter().map(|schema| format!("\"{schema}\".")).collect::<String>();
        format!("{schema}\"{}{suffix}\"", self.table)
    }

    /// The same for what takes the schema from elsewhere, as indexes do in PostgreSQL and tables in SQLite.
    pub(crate) fn local(&self, suffix: &str) -> String {
        format!("\"{}{suffix}\"", self.table)
    }
}

/// A statement with the names of tables put in: made once, and cheap to hand to the database.
#[derive(Debug, Clone)]
pub(crate) struct Statement(Arc<str>);

impl Statement {
    pub(crate) fn new(text: impl Into<String>) -> Statement {
        Statement(text.into().into())
    }

    /// The names that were put in are of letters, digits and `_`; values are bound.
    pub(crate) fn sql(&self) -> sqlx::AssertSqlSafe<Arc<str>> {
        sqlx::AssertSqlSafe(Arc::clone(&self.0))
    }
}

/// The time in milliseconds since 1970, in an expression that every version of SQLite understands.
#[cfg(feature = "sqlite")]
pub(crate) const SQLITE_NOW_MS: &str = "CAST((julianday('now') - 2440587.5) * 86400000.0 AS INTEGER)";

/// Makes a table, unless it exists. If it exists, a role without the right to make tables succeeds too.
#[cfg(feature = "postgres")]
pub(crate) async fn create_in_postgres(
    pool: &sqlx::PgPool,
    table: &TableName,
    text: String,
) -> Result<(), sqlx::Error> {
    let name = table.quoted();
    let is_there = "SELECT to_regclass($1) IS NOT NULL";
    if sqlx::query_scalar::<_, bool>(is_there).bind(&name).fetch_one(pool).await? {
        return Ok(());
    }
    let mut tx = pool.begin().await?;
    // Two that make the same table at once fail each other, `IF NOT EXISTS` or not. So they take turns.
    sqlx::query("SELECT pg_advisory_xact_lock(hashtext('forebay'), hashtext($1))")
        .bind(&name)
        .execute(&mut *tx)
        .await?;
    sqlx::raw_sql(Statement::new(text).sql()).execute(&mut *tx).await?;
    tx.commit().await
}

/// Makes a table, unless it is there.
#[cfg(feature = "sqlite")]
pub(crate) async fn create_in_sqlite(pool: &sqlx::SqlitePool, text: String) -> Result<(), sqlx::Error> {
    let mut tx = pool.begin_with("BEGIN IMMEDIATE").await?;
    sqlx::raw_sql(Statement::new(text).sql()).execute(&mut *tx).await?;
    tx.commit().await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_may_have_a_schema_and_is_quoted() {
        let plain = TableName::parse("forebay_done").expect("a name");
        assert_eq!(
            (plain.quoted(), plain.beside("_expires")),
            ("\"forebay_done\"".into(), "\"forebay_done_expires\"".into())
        );
        let within = TableName::parse("Jobs.done2").expect("a name");
        assert_eq!(
            (within.quoted(), within.local("_x")),
            ("\"Jobs\".\"done2\"".into(), "\"done2_x\"".into())
        );
    }

    #[test]
    fn what_could_be_more_than_a_name_is_refused() {
        let long = "a".repeat(NAME_PART_MAX + 1);
        for name in ["", ".", "a.", ".a", "a.b.c", "1a", "a b", "a\"b", "a;drop", "é", "a\0", &long] {
            assert_eq!(TableName::parse(name), None, "{name}");
        }
    }
}
